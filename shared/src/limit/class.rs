//! Classes of callers: each has a pool of its own of a limit, and uses the rest only above a floor.

use std::fmt;
use std::str::FromStr;

use super::{Limit, LimitError, RefillRule};
use crate::{ClassName, LimitName, MilliTokens};

/// What the text of a class must be.
pub(super) const CLASS: &str = "its class must be NAME:AT_LEAST% or NAME:AT_LEAST%:LEAVES%, each from 0% to 99%; \
                                write for example ,class=batch:10%:30%";
/// Highest percentage of a class, and of all classes of a limit together, 99: the others have a pool
/// too.
const MOST: u8 = 99;

/// A class of callers of a limit.
///
/// The limit is divided into pools, whose capacities and refills add up to those of the limit: one for
/// each class, and one that is shared. A class takes from its own pool, or from the shared one as far as
/// its `leaves` stay there. Other callers take from the shared pool, or from that of a class above half
/// of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Class {
    name: ClassName,
    at_least: u8,
    leaves: u8,
}

impl Class {
    /// Returns a class that has at least so many percent of the limit, whatever others ask. It leaves
    /// nothing of the rest to others; see [`leaving`](Self::leaving).
    ///
    /// # Errors
    /// [`LimitError`] for a bad name, or more than 99 %.
    pub fn new(name: &str, at_least_percent: u8) -> Result<Self, LimitError> {
        Self { name: ClassName::new(name)?, at_least: at_least_percent, leaves: 0 }.checked()
    }

    /// Returns the class that takes from the shared pool only as far as so many percent of that pool's
    /// capacity stay for others.
    ///
    /// # Errors
    /// [`LimitError`] for more than 99 %.
    pub fn leaving(self, percent: u8) -> Result<Self, LimitError> {
        Self { leaves: percent, ..self }.checked()
    }

    fn checked(self) -> Result<Self, LimitError> {
        for (field, percent) in [("at_least", self.at_least), ("leaves", self.leaves)] {
            if percent > MOST {
                return Err(LimitError::Class {
                    class: self.name.to_string(),
                    error: format!("{field} must be 0 to 99 %, got {percent} %: correct it"),
                });
            }
        }
        Ok(self)
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &ClassName {
        &self.name
    }

    /// Returns the percentage of the limit that is its own.
    #[must_use]
    pub const fn at_least_percent(&self) -> u8 {
        self.at_least
    }

    /// Returns the percentage of the shared pool's capacity that it leaves to others.
    #[must_use]
    pub const fn leaves_percent(&self) -> u8 {
        self.leaves
    }
}

/// `batch:10%:30%`
impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}%", self.name, self.at_least)?;
        match self.leaves {
            0 => Ok(()),
            leaves => write!(f, ":{leaves}%"),
        }
    }
}

impl FromStr for Class {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let wrong = || LimitError::Text { text: text.to_owned(), must: CLASS };
        let (name, parts) = text.split_once(':').ok_or_else(wrong)?;
        let percent = |text: &str| text.strip_suffix('%')?.parse::<u8>().ok();
        let (at_least, leaves) = parts.split_once(':').unwrap_or((parts, "0%"));
        let at_least = percent(at_least).ok_or_else(wrong)?;
        Self::new(name, at_least)?.leaving(percent(leaves).ok_or_else(wrong)?)
    }
}

/// Which pools of a limit a request takes from, and what it leaves there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolChoice {
    /// The pool.
    pub pool: LimitName,
    /// Balance of the whole bucket that stays in it, of which each shard has a share.
    pub floor: MilliTokens,
}

impl Limit {
    /// Returns the same rate with classes of callers; without any, all callers share it.
    ///
    /// ```
    /// # use weirgate_shared::{Class, Limit};
    /// let batch = Class::new("batch", 10)?.leaving(30)?;
    /// let limit = Limit::per_minute("tpm", 100_000)?.with_classes([batch])?;
    /// assert_eq!(limit.to_string(), "tpm=100000/minute,class=batch:10%:30%");
    /// # Ok::<(), weirgate_shared::LimitError>(())
    /// ```
    ///
    /// # Errors
    /// [`LimitError`] for slots or a quota, a class that is given twice, classes that have more than 99 %
    /// together, or a pool of less than one token, at any scale of the limit's schedule.
    pub fn with_classes(
        mut self,
        classes: impl IntoIterator<Item = Class>,
    ) -> Result<Self, LimitError> {
        let mut classes: Vec<_> = classes.into_iter().collect();
        classes.sort_by(|one, other| one.name.cmp(&other.name));
        let refused = |class: &Class, error: &str| {
            Err(LimitError::Class {
                class: class.name.to_string(),
                error: format!("limit {:?} {error}", self.name),
            })
        };
        if let Some(class) = classes.first().filter(|_| !self.rule.kind().refills()) {
            let error =
                "is no rate, and only rates have classes: give the class a limit of its own";
            return refused(class, error);
        }
        if let Some([_, twice]) = classes.array_windows().find(|[a, b]| a.name == b.name) {
            return refused(twice, "has it twice: give it once");
        }
        let sum: u32 = classes.iter().map(|class| u32::from(class.at_least)).sum();
        if let Some(class) = classes.last().filter(|_| sum > u32::from(MOST)) {
            let error =
                format!("has classes of {sum} % together, at most 99 % are: lower at_least");
            return refused(class, &error);
        }
        for class in &classes {
            self.name.pool(&class.name)?;
        }
        self.classes = classes;
        if let Some(pool) = self.pools().iter().find(|pool| pool.is_too_small()) {
            return Err(LimitError::Class {
                class: pool.name.pool_of().unwrap_or("shared").to_owned(),
                error: format!(
                    "its pool of limit {:?} must have at least 1 token, got {}: change at_least, or raise the limit",
                    self.name, pool.rule.capacity
                ),
            });
        }
        match self.schedule.take() {
            Some(schedule) => self.with_schedule(schedule),
            None => Ok(self),
        }
    }

    /// Returns whether a pool grants nothing, because its capacity is below one token.
    pub(super) fn is_too_small(&self) -> bool {
        self.rule.capacity < MilliTokens::from_tokens(1)
    }

    /// Returns the classes, by name.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// Returns the limits that a bucket has for this one: itself, or its pools, which add up to it. The
    /// shared pool is the first, and has its name.
    #[must_use]
    pub fn pools(&self) -> Vec<Self> {
        let mut shared = Self { classes: vec![], ..self.clone() };
        let mut pools = vec![];
        for class in self.classes.iter().filter(|class| class.at_least > 0) {
            let part = |whole: MilliTokens| whole.percent(class.at_least);
            let rule = RefillRule {
                capacity: part(self.rule.capacity),
                refill_amount: part(self.rule.refill_amount),
                ..self.rule
            };
            shared.rule.capacity -= rule.capacity;
            shared.rule.refill_amount -= rule.refill_amount;
            let Ok(name) = self.name.pool(&class.name) else {
                continue;
            };
            pools.push(Self { name, rule, ..shared.clone() });
        }
        pools.insert(0, shared);
        pools
    }

    /// Returns where callers of a class take from this limit, the preferred pool first; `None` for a
    /// class that it lacks.
    #[must_use]
    pub fn choices(&self, class: Option<&ClassName>) -> Option<Vec<PoolChoice>> {
        let pools = self.pools();
        let of = |class: &Class| {
            let name = self.name.pool(&class.name).ok()?;
            pools.iter().find(|pool| pool.name == name)
        };
        let choice = |pool: &Self, percent| PoolChoice {
            pool: pool.name.clone(),
            floor: pool.rule.capacity.percent(percent),
        };
        let shared = &pools[0];
        match class {
            Some(class) => {
                let class = self.classes.iter().find(|known| known.name == *class)?;
                let own = of(class).map(|own| choice(own, 0));
                let shared = choice(shared, class.leaves);
                Some(own.into_iter().chain([shared]).collect())
            }
            None => {
                let others = self.classes.iter().filter_map(of);
                let others = others.map(|pool| choice(pool, 50));
                Some([choice(shared, 0)].into_iter().chain(others).collect())
            }
        }
    }
}
