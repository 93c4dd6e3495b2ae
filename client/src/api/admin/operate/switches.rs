//! Stops levels and starts them again.

use weirgate_shared::write::write_switches;
use weirgate_shared::{AuditChange, ConfigLevel, MAX_SWITCHES, Switch, Switches, switches_key};

use super::operation::{Operating, OperationOutcome, Options, Read, operation_options};
use crate::api::admin::Admin;
use crate::api::page::{Page, Unreadable};
use crate::config::stored_switches;
use crate::session::{CacheKey, Session};
use crate::values::Error;

impl Admin {
    /// Stops a level: every acquire of it is [disabled](crate::Decision::Disabled), also of callers
    /// that bring limits in code or from a file, until the level is [started](Self::start). A
    /// narrower level that is [exempt](Self::exempt) goes on. What is configured stays as it is.
    ///
    /// It takes effect at once for this limiter, and within
    /// [`Builder::config_ttl`](crate::Builder::config_ttl), or a second if that is shorter, for
    /// others, also after a freeze; waiting requests end then too. Grants that callers have stay: they may adjust and release them.
    ///
    /// ```no_run
    /// # async fn example(limiter: weirgate::RateLimiter) -> Result<(), Box<dyn std::error::Error>> {
    /// use weirgate::ConfigLevel;
    /// limiter.admin().stop(&ConfigLevel::Resource("gpt-4".try_into()?)).send().await?;
    /// // One customer goes on:
    /// limiter.admin().exempt(&ConfigLevel::Entity("customer-1".try_into()?)).send().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stop(&self, level: &ConfigLevel) -> SwitchEdit<'_> {
        SwitchEdit::new(self, level, Some(Switch::Stopped))
    }

    /// Exempts a level from wider levels that are stopped, now or later. If it is stopped itself, it
    /// goes on.
    pub fn exempt(&self, level: &ConfigLevel) -> SwitchEdit<'_> {
        SwitchEdit::new(self, level, Some(Switch::Exempt))
    }

    /// Starts a level that is stopped, or ends its exemption: it is then as the next wider level.
    pub fn start(&self, level: &ConfigLevel) -> SwitchEdit<'_> {
        SwitchEdit::new(self, level, None)
    }

    /// Returns the levels that are stopped or exempt, read from the table.
    ///
    /// There is one page. A switch that was changed by other means and cannot be read is among its
    /// [unreadable](Page::unreadable) entries. Its level counts as stopped until it is
    /// [stopped](Self::stop), [exempted](Self::exempt) or [started](Self::start).
    ///
    /// # Errors
    /// [`Error::Store`], or [`Error::UnreadableItem`] if no switch can be read.
    pub async fn switches(&self) -> Result<Page<(ConfigLevel, Switch)>, Error> {
        self.switch_page(|switches, level| !switches.is_unreadable(level)).await
    }

    /// Returns the switches by which acquires are decided: as [`switches`](Self::switches), and as stopped
    /// each level whose switch cannot be read.
    ///
    /// # Errors
    /// As [`switches`](Self::switches).
    pub async fn switches_in_force(&self) -> Result<Page<(ConfigLevel, Switch)>, Error> {
        self.switch_page(|_, _| true).await
    }

    async fn switch_page(
        &self,
        is_shown: impl Fn(&Switches, &ConfigLevel) -> bool,
    ) -> Result<Page<(ConfigLevel, Switch)>, Error> {
        self.session
            .at_home(async {
                let switches = self.stored_switches().await?;
                let key = switches_key(&self.session.namespace);
                let unreadable = switches.unreadable.iter();
                let unreadable = unreadable
                    .map(|(level, error)| Unreadable::switch(key.clone(), level.as_ref(), error))
                    .collect();
                let levels = switches.levels.iter();
                let shown = levels.filter(|(level, _)| is_shown(&switches, level));
                Ok(Page {
                    items: shown.map(|(level, switch)| (level.clone(), *switch)).collect(),
                    unreadable,
                    next: None,
                })
            })
            .await
    }

    pub(in crate::api::admin) async fn stored_switches(&self) -> Result<Switches, Error> {
        let key = switches_key(&self.session.namespace);
        let items = self.session.read(std::slice::from_ref(&key)).await?;
        stored_switches(&key, items.first())
    }
}

/// A stop, start or exemption of a level. Nothing happens until [`send`](Self::send).
#[derive(Debug, Clone)]
#[must_use = "a change does nothing until it is sent"]
pub struct SwitchEdit<'a> {
    admin: &'a Admin,
    level: ConfigLevel,
    next: Option<Switch>,
    options: Options,
}

/// What a [`SwitchEdit`] found and did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwitchReport {
    /// What became of the change.
    pub outcome: OperationOutcome,
    /// Switch of the level before; `None` if it had none.
    pub before: Option<Switch>,
    /// Switch of the level after.
    pub after: Option<Switch>,
}

impl<'a> SwitchEdit<'a> {
    fn new(admin: &'a Admin, level: &ConfigLevel, next: Option<Switch>) -> Self {
        let options = Options::default();
        Self { admin, level: level.clone(), next, options }
    }

    operation_options!();

    /// Makes the change.
    ///
    /// # Errors
    /// [`Error::Invalid`] if 200 levels besides the system have switches already, or the key was used for another
    /// change; [`Error::Contended`] if other processes kept changing switches; [`Error::Store`] if
    /// the outcome is not known: a second call is safe.
    pub async fn send(self) -> Result<SwitchReport, Error> {
        self.admin
            .session
            .at_home(async {
                let (session, level, next) = (&*self.admin.session, &self.level, self.next);
                let what = match next {
                    Some(Switch::Stopped) => format!("stop {level}"),
                    Some(Switch::Exempt) => format!("exempt {level}"),
                    None => format!("start {level}"),
                };
                let change = |seen: &Switches| {
                    let switches = self.switches(seen)?;
                    let before = seen.levels.get(level).copied();
                    let event = AuditChange::Switch { level: level.clone(), before, after: next };
                    let is_changed = before != next || seen.is_unreadable(level);
                    Ok(is_changed.then_some((switches, event)))
                };
                let stops_system = *level == ConfigLevel::System && next == Some(Switch::Stopped);
                let changed =
                    change_switches(session, what, &self.options, stops_system, change).await?;
                let of = |switches: Switches| switches.levels.get(level).copied();
                let (outcome, [before, after]) = (changed.0, changed.1.map(of));
                Ok(SwitchReport { outcome, before, after })
            })
            .await
    }

    /// Returns the switches after the change.
    fn switches(&self, seen: &Switches) -> Result<Switches, Error> {
        let mut switches = seen.clone();
        switches.version = seen.version.saturating_add(1);
        switches.set(&self.level, self.next);
        let is_other = |level: &&ConfigLevel| **level != ConfigLevel::System;
        let is_new = self.next.is_some() && !seen.levels.contains_key(&self.level);
        let count = switches.levels.keys().filter(is_other).count();
        if is_new && is_other(&&self.level) && count > MAX_SWITCHES {
            return Err(Error::Invalid(format!(
                "{} has no room: {MAX_SWITCHES} levels are stopped or exempt already; start some, or disable the level in its configuration",
                self.level
            )));
        }
        Ok(switches)
    }
}

/// Changes the switches of a namespace: `change` returns those after it, and the audit event; `None`
/// if nothing has to be changed. Returns the switches before and after.
pub(super) async fn change_switches(
    session: &Session,
    what: String,
    options: &Options,
    replaces_unreadable: bool,
    change: impl Fn(&Switches) -> Result<Option<(Switches, AuditChange)>, Error>,
) -> Result<(OperationOutcome, [Switches; 2]), Error> {
    let key = switches_key(&session.namespace);
    let mut operating = Operating::new(session, what, CacheKey::Switches, options)?;
    loop {
        let (cache, sent_at) = (&session.config_cache, session.env.ages.now());
        let request = cache.switches.begin(sent_at, true);
        let Read { items, known, mark } = operating.read(std::slice::from_ref(&key)).await?;
        let item = items.iter().find(|item| item.key().as_ref() == Some(&key));
        let seen = match stored_switches(&key, item) {
            Err(Error::UnreadableItem { error, .. }) if replaces_unreadable => {
                Switches { unreadable: vec![(None, error)], ..Switches::default() }
            }
            seen => {
                let seen = seen?;
                cache.record_switches(request, seen.clone());
                seen
            }
        };
        if let Some(outcome) = known {
            return Ok((outcome, [seen.clone(), seen]));
        }
        let (next, event) = change(&seen)?.unzip();
        let write = |next| vec![write_switches(&session.namespace, &seen, next)];
        let plan = next.as_ref().map(write).zip(event);
        if let Some(outcome) = operating.write(plan, mark).await? {
            if let (OperationOutcome::Applied, Some(next)) = (outcome, &next) {
                cache.record_switches(cache.switches.written(sent_at), next.clone());
            }
            let after = next.unwrap_or_else(|| seen.clone());
            return Ok((outcome, [seen, after]));
        }
    }
}
