//! The conditions of planned writes by name, so that each can be taken out and missed.

use weirgate_shared::write::{Action, AttributeUpdate, Condition, Path, Update, Value};

/// Purpose of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A client creates the bucket with its first take.
    Create,
    /// A client takes available tokens.
    Take,
    /// A client ends its lease.
    Release,
    /// A client rolls back unused tokens.
    RollBack,
    /// A client renews its lease.
    Renew,
    /// The aggregator credits refill.
    Refill,
    /// The aggregator begins to make two shards of one.
    Split,
    /// It makes the new half of a split.
    Make,
    /// It removes the escrow of a split.
    Clear,
    /// The reconciler makes one shard of two.
    Merge,
    /// The reconciler returns the tokens of expired leases.
    Expire,
    /// The reconciler records an activity sample of a shard.
    Look,
    /// The aggregator copies usage.
    Copy,
    /// An operator deletes an item.
    Delete,
    /// An operator erases the bucket.
    Erase,
    /// An operator sets the balance of all shards to their shares of the capacity.
    Reset,
    /// An operator raises the balances, as far as there is room.
    TopUp,
    /// Any write that begins an hour.
    Roll,
}

/// A condition by what it asks, of one kind of write: `rf =`, `tk >=`, `h.id absent`; all that
/// begin alike: `h.id*`. One that is weakened, not taken out: `v <= as <>`.
pub type Guard = (Kind, &'static str);

/// Returns a condition's name, without its numbers.
pub fn name(condition: &Condition) -> String {
    match condition {
        Condition::Absent(path) => format!("{} absent", place(path)),
        Condition::Present(path) => format!("{} present", place(path)),
        Condition::Equals(path, _) => format!("{} =", place(path)),
        Condition::Differs(path, _) => format!("{} <>", place(path)),
        Condition::AtLeast(path, _) => format!("{} >=", place(path)),
        Condition::AtMost(path, _) => format!("{} <=", place(path)),
        Condition::Lacks(path, _) => format!("{} lacks", place(path)),
        Condition::AbsentOr(_, condition) => name(condition),
    }
}

/// The attribute, with neither the limit's name nor the lease's id.
fn place(path: &Path) -> String {
    match &*path.0 {
        [map, _id, rest @ ..] => {
            [&[map.as_ref(), "id"], &*rest.iter().map(AsRef::as_ref).collect::<Vec<_>>()]
                .concat()
                .join(".")
        }
        [one] => match one.rsplit_once('_') {
            Some((limit, field)) if limit.starts_with("b_") => field.to_owned(),
            _ => one.trim_end_matches(|digit: char| digit.is_ascii_digit()).to_owned(),
        },
        [] => String::new(),
    }
}

/// The conditions of one part of a transaction.
pub fn conditions(action: &Action) -> &[Condition] {
    match action {
        Action::Update(Update { conditions, .. })
        | Action::Delete(_, conditions)
        | Action::Check(_, conditions) => conditions,
    }
}

/// Returns whether a write begins an hour: only those copy an attribute.
pub(crate) fn rolls(action: &Action) -> bool {
    let Action::Update(update) = action else {
        return false;
    };
    update.changes.iter().any(|change| matches!(change, AttributeUpdate::Copy(..)))
}

/// Asks that the number is not the one after those that are allowed, instead of below it.
fn weaken(condition: &mut Condition) {
    match condition {
        Condition::AbsentOr(_, inner) => weaken(inner),
        Condition::AtMost(path, Value::Int(most)) => {
            *condition = Condition::Differs(path.clone(), Value::Int(*most + 1));
        }
        other => panic!("{other:?} is not weakened"),
    }
}

/// Removes the condition from writes of its kind.
pub(crate) fn strip(actions: &mut [Action], kind: Kind, without: Option<Guard>) {
    let Some((of, missing)) = without else { return };
    for action in
        actions.iter_mut().filter(|action| of == kind || of == Kind::Roll && rolls(action))
    {
        let (Action::Update(Update { conditions, .. })
        | Action::Delete(_, conditions)
        | Action::Check(_, conditions)) = action;
        if let Some(weakened) = missing.strip_suffix(" as <>") {
            conditions.iter_mut().filter(|condition| name(condition) == weakened).for_each(weaken);
        }
        let is_missing = |condition: &Condition| match missing.strip_suffix('*') {
            Some(start) => name(condition).starts_with(start),
            None => name(condition) == missing,
        };
        conditions.retain(|condition| !is_missing(condition));
    }
}
