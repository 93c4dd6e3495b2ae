//! Keys of audit events.

use std::fmt;

use ulid::Ulid;

use super::{ItemKey, PARTITIONS, spread};
use crate::{ConfigLevel, EntityId, EpochMillis, Namespace, PlanName, Resource};

const AUDIT: &str = "#AUDIT#";
/// Prefix of the sort keys of a namespace's audit events in `GSI3`.
pub const LISTED_AUDIT: &str = "AUDIT#";

/// Subject whose changes are listed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuditSubject {
    /// Changes of one entity and of its limits.
    Entity(EntityId),
    /// Changes of the limits of one plan.
    Plan(PlanName),
    /// Changes of the limits of one resource.
    Resource(Resource),
    /// Changes of the limits of the system.
    System,
}

impl From<&ConfigLevel> for AuditSubject {
    fn from(level: &ConfigLevel) -> Self {
        match level {
            ConfigLevel::EntityResource(entity, _) | ConfigLevel::Entity(entity) => {
                Self::Entity(entity.clone())
            }
            ConfigLevel::PlanResource(plan, _) | ConfigLevel::Plan(plan) => {
                Self::Plan(plan.clone())
            }
            ConfigLevel::Resource(resource) => Self::Resource(resource.clone()),
            ConfigLevel::System => Self::System,
        }
    }
}

/// Time of a change, with random bits for changes in the same millisecond. Its text sorts by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditId(Ulid);

impl AuditId {
    /// Returns the id of a change made at `at`. 80 bits of `random` make it unique.
    #[must_use]
    pub fn new(at: EpochMillis, random: u128) -> Self {
        Self(Ulid::from_parts(u64::try_from(at.0).unwrap_or_default(), random))
    }

    /// Returns the time of the change.
    #[must_use]
    pub fn at(self) -> EpochMillis {
        EpochMillis(i64::try_from(self.0.timestamp_ms()).unwrap_or(i64::MAX))
    }

    /// Returns the id with this text. The same id has other spellings; accepts only the one that is
    /// written.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let id = Self(Ulid::from_string(text).ok()?);
        (id.to_string() == text).then_some(id)
    }

    /// Returns the next id.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.increment().unwrap_or(self.0))
    }
}

impl fmt::Display for AuditId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One audit event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuditKey {
    /// Namespace of the tenant.
    pub namespace: Namespace,
    /// Subject of the change.
    pub of: AuditSubject,
    /// Id of the change.
    pub id: AuditId,
}

impl AuditKey {
    /// Returns `{ns}/AUDIT#{entity}`, `{ns}/AUDIT##PLAN#{plan}`, `{ns}/AUDIT##RESOURCE#{resource}` or
    /// `{ns}/AUDIT##SYSTEM`; `#AUDIT#{id}`. No entity's name begins with `#`.
    #[must_use]
    pub fn item_key(&self) -> ItemKey {
        ItemKey {
            pk: Self::partition(&self.namespace, &self.of),
            sk: format!("{AUDIT}{}", self.id),
        }
    }

    /// Returns `GSI3PK` and `GSI3SK`: the events of the namespace by time, in one of
    /// [`audit_partitions`].
    #[must_use]
    pub fn by_namespace(&self) -> (String, String) {
        let id = self.id.to_string();
        let partition = audit_partition(&self.namespace, spread(&id));
        (partition, format!("{LISTED_AUDIT}{id}"))
    }

    /// Returns the partition of all events of one subject.
    #[must_use]
    pub fn partition(namespace: &Namespace, of: &AuditSubject) -> String {
        match of {
            AuditSubject::Entity(entity) => format!("{namespace}/AUDIT#{entity}"),
            AuditSubject::Plan(plan) => format!("{namespace}/AUDIT##PLAN#{plan}"),
            AuditSubject::Resource(resource) => format!("{namespace}/AUDIT##RESOURCE#{resource}"),
            AuditSubject::System => format!("{namespace}/AUDIT##SYSTEM"),
        }
    }

    /// Returns the event that an item is; `None` if the keys are not an event's.
    #[must_use]
    pub fn parse(key: &ItemKey) -> Option<Self> {
        let (namespace, of) = key.pk.split_once("/AUDIT#")?;
        let of = match of.strip_prefix('#') {
            Some("SYSTEM") => AuditSubject::System,
            Some(of) => match of.split_once('#')? {
                ("PLAN", plan) => AuditSubject::Plan(PlanName::new(plan).ok()?),
                ("RESOURCE", resource) => AuditSubject::Resource(Resource::new(resource).ok()?),
                _ => return None,
            },
            None => AuditSubject::Entity(EntityId::new(of).ok()?),
        };
        Some(Self {
            namespace: Namespace::new(namespace).ok()?,
            of,
            id: AuditId::parse(key.sk.strip_prefix(AUDIT)?)?,
        })
    }
}

fn audit_partition(namespace: &Namespace, partition: u32) -> String {
    format!("{namespace}/AUDITS#{partition:02}")
}

/// Returns the partitions of `GSI3` with the audit events of a namespace: `{ns}/AUDITS#00` to `#15`.
pub fn audit_partitions(namespace: &Namespace) -> impl Iterator<Item = String> {
    (0..PARTITIONS).map(move |partition| audit_partition(namespace, partition))
}
