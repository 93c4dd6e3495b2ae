//! Parses a limits file into a tree of nodes, with bounds, so a few bytes cannot cause much work.

use saphyr::{MarkedYaml, ScanError, YamlLoader};
use saphyr_parser::{Event, Parser, Span, SpannedEventReceiver};

/// Deepest nesting of nodes, 16. A valid file needs seven. The tree is dropped and compared by
/// recursion, so a few kilobytes of nesting would overflow the stack.
const DEPTH: usize = 16;
/// Most nodes that all aliases together may stand for, 10,000.
const ALIASED: usize = 10_000;

/// Returns the documents of a text, at most two, because a second one is an error already.
///
/// # Errors
/// [`ScanError`] with its place, if the text is not YAML or exceeds a bound.
pub(super) fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.alias_limit(ALIASED);
    let mut depth = 0_usize;
    let mut documents = 0;
    // Not with `load_from_str`, which recurses into the nesting.
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
