//! `weirgate docs`.

use clap::Args;
use serde::Serialize;
use weirgate::Page;

use crate::context::Context;
use crate::failure::{Failure, Outcome};

/// Prints the pages of this version, without a network.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  weirgate docs\n  weirgate docs guide/limits\n  \
                  weirgate docs operations#the-stream-is-lost")]
pub struct Docs {
    /// Page, perhaps with a section; without one, lists the pages
    #[arg(value_name = "PAGE[#SECTION]")]
    page: Option<String>,
}

#[derive(Serialize)]
struct Item {
    page: &'static str,
    title: &'static str,
}

macro_rules! pages {
    ($($name:literal,)+) => {
        &[$(($name, include_str!(concat!("../../../docs/", $name, ".md")))),+]
    };
}

/// Every page, by its name.
const PAGES: &[(&str, &str)] = pages![
    "architecture",
    "benchmarks",
    "deployment",
    "glossary",
    "guide/README",
    "guide/acquire",
    "guide/agent",
    "guide/api-with-tower",
    "guide/choosing-limits",
    "guide/clients",
    "guide/command-line",
    "guide/comparison",
    "guide/cost-by-volume",
    "guide/costs",
    "guide/envoy",
    "guide/failure-modes",
    "guide/from-envoy-ratelimit",
    "guide/from-redis",
    "guide/from-zae-limiter",
    "guide/functions",
    "guide/go",
    "guide/http",
    "guide/install",
    "guide/json",
    "guide/lambda-extension",
    "guide/leases",
    "guide/lifecycle",
    "guide/limits",
    "guide/lists",
    "guide/live-page",
    "guide/llm-gateway",
    "guide/metrics",
    "guide/multi-tenancy",
    "guide/node",
    "guide/operate",
    "guide/prefetch",
    "guide/python",
    "guide/redis",
    "guide/shards",
    "guide/start",
    "guide/testing-your-code",
    "guide/unavailability",
    "guide/usage",
    "guide/vendor-slots",
    "operations",
    "platform",
    "releases",
    "scaling",
    "security",
    "template",
    "testing",
];

/// A page, or a section of one.
#[derive(Serialize)]
struct Printed<'a> {
    page: &'a str,
    text: String,
}

impl Docs {
    pub fn run(self, context: &Context) -> Result<Outcome, Failure> {
        let output = context.output();
        match &self.page {
            Some(page) => {
                let text = printed(page).map_err(Failure::Refused)?;
                output.print(&Printed { page, text }, |printed| printed.text.clone())?;
            }
            None => {
                let items = PAGES.iter().map(|(page, text)| Item {
                    page,
                    title: text.lines().next().unwrap_or_default().trim_start_matches("# "),
                });
                let listed = Page { items: items.collect(), next: None, unreadable: vec![] };
                output.print(&listed, |listed| {
                    let rows = listed
                        .items
                        .iter()
                        .map(|item| vec![item.page.to_owned(), item.title.to_owned()]);
                    output.table(&["page", "title"], rows)
                })?;
            }
        }
        Ok(Outcome::Done)
    }
}

/// Returns a page, or one section of it, with links that this command takes.
fn printed(address: &str) -> Result<String, String> {
    let (name, text) = find(address)?;
    // Every second part is code.
    let parts = text.split("```").enumerate();
    let parts = parts.map(|(at, part)| match at % 2 {
        0 => with_arguments(name, part),
        _ => part.to_owned(),
    });
    Ok(parts.collect::<Vec<_>>().join("```"))
}

/// Returns prose of the page `name` with its links as arguments of this command. What is no page
/// keeps its text alone.
fn with_arguments(name: &str, prose: &str) -> String {
    let (mut printed, mut rest) = (String::new(), prose);
    while let Some((before, text, link, after)) = next_link(rest) {
        let argument = argument(name, link);
        match (link.contains("://"), find(&argument)) {
            (true, _) => printed += &format!("{before}[{text}]({link})"),
            (false, Ok(_)) => printed += &format!("{before}[{text}]({argument})"),
            (false, Err(_)) => printed += &format!("{}{text}", before.trim_end_matches('!')),
        }
        rest = after;
    }
    printed + rest
}

/// Returns the next link: what is before it, its text, its target, and what is behind it.
fn next_link(prose: &str) -> Option<(&str, &str, &str, &str)> {
    let (head, tail) = prose.split_once("](")?;
    let (link, after) = tail.split_once(')')?;
    let (before, text) = head.rsplit_once('[')?;
    Some((before, text, link, after))
}

/// Returns the argument of this command for a link of the page `name`.
fn argument(name: &str, link: &str) -> String {
    let (path, section) = link.split_once('#').unwrap_or((link, ""));
    let mut parts: Vec<_> = name.split('/').collect();
    if !path.is_empty() {
        parts.pop();
        for part in path.trim_end_matches(".md").split('/') {
            match part {
                ".." => drop(parts.pop()),
                _ => parts.push(part),
            }
        }
    }
    match section {
        "" => parts.join("/"),
        section => format!("{}#{section}", parts.join("/")),
    }
}

/// Returns the name of a page, and its text or that of one section.
fn find(address: &str) -> Result<(&'static str, &'static str), String> {
    let (name, section) = address.split_once('#').unwrap_or((address, ""));
    // As in a checkout, too.
    let wanted = name.trim_start_matches("./").trim_start_matches("docs/");
    let wanted = wanted.trim_end_matches(".md");
    let page = PAGES.iter().find(|(name, _)| *name == wanted);
    let Some(&(name, text)) = page else {
        return Err(format!(
            "PAGE must be one that `weirgate docs` lists, got {wanted:?}; choose one"
        ));
    };
    if section.is_empty() {
        return Ok((name, text));
    }
    let headings = headings(text);
    let found = headings.iter().position(|heading| heading.anchor == section);
    let Some(at) = found else {
        let all: Vec<_> = headings.iter().map(|heading| &*heading.anchor).collect();
        return Err(format!(
            "SECTION of {name} must be one of {}, got {section:?}; choose one",
            all.join(", ")
        ));
    };
    let Heading { start, level, .. } = headings[at];
    let next = headings[at + 1..].iter().find(|next| next.level <= level);
    let end = next.map_or(text.len(), |next| next.start);
    Ok((name, &text[start..end]))
}

/// A heading of a page.
struct Heading {
    /// Its first byte in the page.
    start: usize,
    level: usize,
    /// Its name in an address, as GitHub makes it.
    anchor: String,
}

fn headings(text: &str) -> Vec<Heading> {
    let (mut found, mut start, mut is_code) = (vec![], 0, false);
    for line in text.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        let level = line.len() - title.len();
        if !is_code && level > 0 && title.starts_with(' ') {
            let kept = |c: &char| c.is_alphanumeric() || "_- ".contains(*c);
            let title = title.trim().to_lowercase();
            let anchor: String = title.chars().filter(kept).collect();
            found.push(Heading { start, level, anchor: anchor.replace(' ', "-") });
        }
        start += line.len();
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    #[test]
    fn every_page_is_listed() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        let (mut folders, mut pages) = (vec![docs.clone()], BTreeSet::<PathBuf>::new());
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "md") {
                    pages.insert(path.strip_prefix(&docs).unwrap().with_extension(""));
                }
            }
        }
        let listed: BTreeSet<_> = PAGES.iter().map(|(name, _)| PathBuf::from(name)).collect();
        assert_eq!(listed, pages);
    }

    #[test]
    fn every_link_that_is_printed_is_an_address_or_an_argument() {
        let mut count = 0;
        for (page, text) in PAGES {
            let printed = printed(page).unwrap();
            assert_eq!(printed.lines().count(), text.lines().count(), "{page}");
            for link in printed.split("](").skip(1) {
                let link = link.split(')').next().unwrap();
                if !link.contains("://") {
                    assert!(find(link).is_ok(), "{page}: {link}");
                    count += 1;
                }
            }
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn a_section_ends_at_the_next_one_of_its_level_and_code_has_no_headings() {
        let (_, runbook) = find("operations").unwrap();
        let (_, section) = find("operations#a-function-is-stuck").unwrap();
        assert!(section.starts_with("## A function is stuck\n") && runbook.contains(section));
        assert!(section.contains("\n### The reconciler\n"));
        assert_eq!(section.matches("\n## ").count(), 0);
        for address in ["operations.md#operations", "docs/operations.md", "./docs/operations"] {
            assert_eq!(find(address), Ok(("operations", runbook)), "{address}");
        }
        assert_eq!(find("docs/guide/limits.md"), find("guide/limits"));
        let start = "# Start\n```sh\n# Not a heading\n```\n## Over, `there`\n";
        let anchors = headings(start).into_iter().map(|heading| heading.anchor);
        assert_eq!(anchors.collect::<Vec<_>>(), ["start", "over-there"]);
    }
}
