//! A limits file's text to its tree of nodes, with bounds on what a few bytes can ask for.

use saphyr::{MarkedYaml, ScanError, YamlLoader};
use saphyr_parser::{Event, Parser, Span, SpannedEventReceiver};

/// How deep nodes may lie in each other. What a file can say is seven deep; the tree is dropped and
/// compared by recursion, so a few kilobytes of nesting would end the process.
const DEPTH: usize = 16;
/// How many nodes aliases may stand for, all together.
const ALIASED: usize = 10_000;

/// The documents of a text, two at most: the second one is wrong already.
///
/// # Errors
/// [`ScanError`] with its place, for a text that is no YAML or goes past a bound.
pub(super) fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.alias_limit(ALIASED);
    let mut depth = 0_usize;
    let mut documents = 0;
    // Not by `load_from_str`, which follows the nesting by recursion.
    for event in Parser::new_from_iter(text.chars()) {
        let (event, span): (Event<'_>, Span) = event?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            return Err(ScanError::new_str(
                span.start,
                "nested deeper than anything that a limits file can say",
            ));
        }
        documents += usize::from(event == Event::DocumentEnd);
        loader.on_event(event, span);
        if let Some(error) = loader.error() {
            return Err(error.clone());
        }
        if documents == 2 {
            break;
        }
    }
    Ok(loader.into_documents())
}
