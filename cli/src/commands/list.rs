//! Lists.

use clap::Args;
use serde::Serialize;
use weirgate::{Error, Page, PageToken};

use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Entries that a list prints, about: a request returns up to 100. A larger list ends with the token
/// that continues it.
const MOST: usize = 10_000;
/// Requests for a list. Pages may be empty, and many lists have parts, so few entries may take many.
const MOST_REQUESTS: u32 = 1_000;

/// Which part of a list to print.
#[derive(Debug, Clone, Args)]
pub struct PageArgs {
    /// Continues after some 10,000 entries, with the token that the list ended with
    #[arg(long, value_name = "TOKEN", value_parser = token)]
    page: Option<PageToken>,
    /// Whether the list has bounds of its own, so that all of it is printed.
    #[arg(skip)]
    pub all: bool,
    /// Whether the list has an order of its own. Others have parts, so that only a whole list is sorted.
    #[arg(skip)]
    pub is_ordered: bool,
}

/// Parses a page token as an argument.
pub fn token(text: &str) -> Result<PageToken, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

impl PageArgs {
    /// Reads a list, and prints it as a table with the rows of each entry.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or printed.
    pub async fn print<T: Serialize, R: IntoIterator<Item = Vec<String>>>(
        &self,
        context: &Context,
        columns: &[&str],
        rows: impl Fn(&T) -> R,
        mut read: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>,
    ) -> Result<Outcome, Failure> {
        let mut list = read(self.page.as_ref()).await?;
        let mut requests = 1;
        while let Some(next) = &list.next
            && (self.all || list.items.len() < MOST && requests < MOST_REQUESTS)
        {
            let page = read(Some(next)).await?;
            list.items.extend(page.items);
            list.unreadable.extend(page.unreadable);
            list.next = page.next;
            requests += 1;
        }
        if !self.is_ordered && self.page.is_none() && list.next.is_none() {
            let key = |item: &T| rows(item).into_iter().collect::<Vec<_>>();
            list.items.sort_by_cached_key(key);
        }
        let output = context.output();
        output.print(&list, |list| {
            let items = match list.items.is_empty() {
                true => String::new(),
                false => output.table(columns, list.items.iter().flat_map(&rows)) + "\n",
            };
            items + &unreadable::table(output, &list.unreadable)
        })?;
        match &list.next {
            Some(next) => output.note(format!("more: --page {next}")),
            None if list.items.is_empty() && list.unreadable.is_empty() => output.note("none"),
            None => {}
        }
        Ok(unreadable::outcome(&list.unreadable))
    }
}
