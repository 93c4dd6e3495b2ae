//! Lists, page by page.

use clap::Args;
use serde::Serialize;
use weirgate::{Error, Page, PageToken};

use super::unreadable;
use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Entries of a page that is printed, at least, unless the list ends or requests are used up.
const FULL: usize = 100;
/// Requests for a page that is printed: four times the parts of the lists with most of them.
const MOST_REQUESTS: u32 = 64;

/// Which part of a list to print.
#[derive(Debug, Clone, Args)]
pub struct PageArgs {
    /// Prints the page with this token, which the page before it ends with
    #[arg(long, value_name = "TOKEN", value_parser = token, conflicts_with = "all")]
    page: Option<PageToken>,
    /// Prints all pages
    #[arg(long)]
    pub all: bool,
}

/// Parses a page token as an argument.
pub fn token(text: &str) -> Result<PageToken, String> {
    text.parse().map_err(|error: Error| error.to_string())
}

impl PageArgs {
    /// Reads the requested part of a list, and prints it as a table.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be read or printed.
    pub async fn print<T: Serialize>(
        &self,
        context: &Context,
        columns: &[&str],
        row: impl Fn(&T) -> Vec<String>,
        mut read: impl AsyncFnMut(Option<&PageToken>) -> Result<Page<T>, Error>,
    ) -> Result<Outcome, Failure> {
        let mut list = read(self.page.as_ref()).await?;
        let mut requests = 1;
        while let Some(next) = &list.next
            && (self.all || is_short(&list) && requests < MOST_REQUESTS)
        {
            let page = read(Some(next)).await?;
            list.items.extend(page.items);
            list.unreadable.extend(page.unreadable);
            list.next = page.next;
            requests += 1;
        }
        let output = context.output();
        output.print(&list, |list| {
            let items = match list.items.is_empty() {
                true => String::new(),
                false => output.table(columns, list.items.iter().map(&row)) + "\n",
            };
            items + &unreadable::table(output, &list.unreadable)
        })?;
        match &list.next {
            Some(next) => output.note(format!("more: --page {next}, or --all")),
            None if list.items.is_empty() && list.unreadable.is_empty() => output.note("none"),
            None => {}
        }
        Ok(unreadable::outcome(&list.unreadable))
    }
}

/// Returns whether more pages are read for this one. Many lists have parts, and no page has entries
/// of two of them, so a page may be empty although the list is not.
const fn is_short<T>(list: &Page<T>) -> bool {
    list.items.len() + list.unreadable.len() < FULL
}
