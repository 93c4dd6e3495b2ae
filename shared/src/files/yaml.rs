//! The nodes of a YAML document, with bounds and with their places.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::Path;

use saphyr::{MarkedYaml, Scalar, ScalarStyle, ScanError, Tag, YamlData, YamlLoader};
use saphyr_parser::{Event, Parser, Span, SpannedEventReceiver};

use super::FileError;

/// Most nodes that all aliases together may stand for, 10,000.
const ALIASED: usize = 10_000;
/// What the loader says of a key that a map has twice.
const TWICE: &str = "duplicated key in mapping";
/// What the tags of YAML's own types begin with.
const CORE: &str = "tag:yaml.org,2002:";

/// What a file must be.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    /// What an empty file lacks.
    pub needs: &'static str,
    /// Deepest nesting of nodes. The tree is dropped by recursion, so a few kilobytes of nesting
    /// would overflow the stack.
    pub depth: usize,
}

/// A part of the file, and its path in the tree: `resources.gpt-4.limits`.
#[derive(Debug, Clone)]
pub struct Node<'y> {
    at: String,
    yaml: &'y MarkedYaml<'y>,
}

/// The file that errors name.
#[derive(Debug, Clone, Copy)]
pub struct Source<'p>(&'p Path);

/// Calls `read` with the one document of the text.
///
/// # Errors
/// [`FileError`] with its place: that of `read`, or if the text is no YAML, exceeds a bound, or has
/// no document or several.
pub fn with_document<T>(
    format: Format,
    path: &Path,
    text: &str,
    read: impl FnOnce(Source<'_>, Node<'_>) -> Result<T, FileError>,
) -> Result<T, FileError> {
    let source = Source(path);
    let documents = load(format, text).map_err(|error| {
        let at = error.marker();
        let twice = (error.info() == TWICE).then(|| scalar_at(text, at.index()));
        let message = match twice.flatten() {
            Some(name) => duplicated(&name),
            None => error.info().to_owned(),
        };
        source.wrong((at.line(), at.col() + 1), message)
    })?;
    match &documents[..] {
        [] => {
            let message = format!("the file is empty: it needs {}", format.needs);
            Err(source.wrong((1, 1), message))
        }
        [document] => read(source, Node { at: String::new(), yaml: document }),
        [_, second, ..] => Err(source
            .wrong(place(second), "a second document begins: the file must have one".to_owned())),
    }
}

/// Returns the documents of a text, at most two, because a second one is an error already. Scalars
/// keep their text, with which a value such as `007` is a name.
fn load(format: Format, text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.alias_limit(ALIASED);
    loader.early_parse(false);
    // The anchors of the nodes that have not ended.
    let (mut open, mut documents) = (vec![], 0);
    // Not with `load_from_str`, which recurses into the nesting.
    for event in Parser::new_from_iter(text.chars()) {
        let (event, span): (Event<'_>, Span) = event?;
        match &event {
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => open.push(*anchor),
            Event::SequenceEnd | Event::MappingEnd => drop(open.pop()),
            Event::Alias(anchor) if open.contains(anchor) => {
                let message = "an alias must not stand within the node that it names";
                return Err(ScanError::new_str(span.start, message));
            }
            _ => {}
        }
        if open.len() > format.depth {
            let message = "nested deeper than anything that this file can say";
            return Err(ScanError::new_str(span.start, message));
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

/// Returns the scalar that begins at this character.
fn scalar_at(text: &str, at: usize) -> Option<String> {
    let events = Parser::new_from_iter(text.chars()).map_while(Result::ok);
    let mut scalars = events.filter_map(|(event, span)| match event {
        Event::Scalar(scalar, ..) if span.start.index() == at => Some(scalar.into_owned()),
        _ => None,
    });
    scalars.next()
}

fn duplicated(name: &str) -> String {
    format!("duplicated key {name:?}: put the two together")
}

fn place(yaml: &MarkedYaml<'_>) -> (usize, usize) {
    (yaml.span.start.line(), yaml.span.start.col() + 1)
}

impl Node<'_> {
    /// Returns line and column.
    #[must_use]
    pub fn place(&self) -> (usize, usize) {
        place(self.yaml)
    }

    /// Returns the node's name in an error.
    fn name(&self) -> &str {
        match self.at.as_str() {
            "" => "the file",
            at => at,
        }
    }

    /// Returns whether the node is a map.
    #[must_use]
    pub const fn is_map(&self) -> bool {
        matches!(self.yaml.data, YamlData::Mapping(_))
    }
}

impl Source<'_> {
    /// Returns an error at a place.
    #[must_use]
    pub fn wrong(&self, place: (usize, usize), message: String) -> FileError {
        FileError { path: self.0.to_owned(), place: Some(place), message }
    }

    /// Returns an error about the node.
    #[must_use]
    pub fn error(&self, node: &Node<'_>, message: &str) -> FileError {
        self.wrong(node.place(), format!("{}: {message}", node.name()))
    }

    /// Returns the error of a node that is not as expected.
    #[must_use]
    pub fn refuse(&self, node: &Node<'_>, takes: &str) -> FileError {
        let message = format!("{} is {}, must be {takes}", node.name(), shown(node.yaml));
        self.wrong(node.place(), message)
    }

    /// Returns the entries of a map, with their keys, in their order.
    ///
    /// # Errors
    /// [`FileError`] if the node is no map, or a key is no name or there twice.
    pub fn entries<'y>(
        &self,
        node: &Node<'y>,
        takes: &str,
    ) -> Result<Vec<(String, Node<'y>)>, FileError> {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let (mut entries, mut names) = (vec![], HashSet::new());
        for (key, value) in map {
            let wrong = |message: String| Err(self.wrong(place(key), message));
            if is_merge(key) {
                return wrong(format!(
                    "{}: << does not merge maps here: repeat the entries, or let an alias stand for all of a value",
                    node.name()
                ));
            }
            let Some(name) = text(key) else {
                return wrong(format!("a key is {}, must be a name", shown(key)));
            };
            // As YAML, 1 and "1" are different keys; here they are one name.
            if !names.insert(name) {
                return wrong(format!("{}: {}", node.name(), duplicated(name)));
            }
            let at = match node.at.is_empty() {
                true => name.to_owned(),
                false => format!("{}.{name}", node.at),
            };
            entries.push((name.to_owned(), Node { at, yaml: value }));
        }
        Ok(entries)
    }

    /// Returns the error of an unknown key.
    #[must_use]
    pub fn unknown(&self, node: &Node<'_>, key: &str, takes: &str) -> FileError {
        let at = match &node.yaml.data {
            YamlData::Mapping(map) => map.keys().find(|at| text(at) == Some(key)).map(place),
            _ => None,
        };
        let message = format!("{}: {key:?} is unknown, must be {takes}", node.name());
        self.wrong(at.unwrap_or_else(|| node.place()), message)
    }

    /// Returns the items of a list.
    ///
    /// # Errors
    /// [`FileError`] if the node is no list.
    pub fn items<'y>(&self, node: &Node<'y>, takes: &str) -> Result<Vec<Node<'y>>, FileError> {
        let YamlData::Sequence(list) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let item = |(place, yaml)| Node { at: format!("{}[{place}]", node.at), yaml };
        Ok(list.iter().enumerate().map(item).collect())
    }

    /// Returns a whole number, which may have `_`: YAML takes `1_000` for a text.
    ///
    /// # Errors
    /// [`FileError`] if the node is none.
    pub fn integer(&self, node: &Node<'_>) -> Result<i64, FileError> {
        match scalar(node.yaml) {
            Some(Scalar::Integer(number)) => Ok(number),
            Some(Scalar::String(text)) if is_plain(node.yaml) => {
                text.replace('_', "").parse().map_err(|_| self.refuse(node, "a whole number"))
            }
            _ => Err(self.refuse(node, "a whole number")),
        }
    }

    /// Returns a truth value.
    ///
    /// # Errors
    /// [`FileError`] if the node is none.
    pub fn boolean(&self, node: &Node<'_>) -> Result<bool, FileError> {
        match scalar(node.yaml) {
            Some(Scalar::Boolean(is)) => Ok(is),
            _ => Err(self.refuse(node, "true or false")),
        }
    }

    /// Returns a text. `404`, `007` and `1.10` are texts too, with all their digits.
    ///
    /// # Errors
    /// [`FileError`] if the node is none.
    pub fn text(&self, node: &Node<'_>) -> Result<String, FileError> {
        let text = text(node.yaml).map(str::to_owned);
        text.ok_or_else(|| self.refuse(node, "a text"))
    }
}

/// Returns the text of a scalar whose value is not null.
fn text<'y>(yaml: &'y MarkedYaml<'_>) -> Option<&'y str> {
    match (scalar(yaml)?, &yaml.data) {
        (Scalar::Null, _) => None,
        (_, YamlData::Representation(text, ..)) => Some(text),
        _ => None,
    }
}

/// Returns the value of a scalar by its tag, or by its look if it has none; `None` if the node is no
/// scalar, or the tag is unknown or does not fit.
fn scalar<'y>(yaml: &'y MarkedYaml<'_>) -> Option<Scalar<'y>> {
    let YamlData::Representation(text, style, tag) = &yaml.data else {
        return None;
    };
    let text = Cow::Borrowed(&**text);
    let Some(tag) = tag.as_deref() else {
        return Scalar::parse_from_cow_and_metadata(text, *style, None);
    };
    match full(tag).strip_prefix(CORE) {
        Some(kind) => {
            let tag = Cow::Owned(Tag { handle: CORE.to_owned(), suffix: kind.to_owned() });
            // By the tag also where the value is in quotes.
            Scalar::parse_from_cow_and_metadata(text, ScalarStyle::Plain, Some(&tag))
        }
        // `! 404` is a text.
        None if full(tag) == "!" => Some(Scalar::String(text)),
        None => None,
    }
}

fn is_plain(yaml: &MarkedYaml<'_>) -> bool {
    matches!(yaml.data, YamlData::Representation(_, ScalarStyle::Plain, None))
}

fn full(tag: &Tag) -> String {
    format!("{}{}", tag.handle, tag.suffix)
}

/// Returns whether a key is that of a merge, in those YAML versions that have it.
fn is_merge(key: &MarkedYaml<'_>) -> bool {
    match &key.data {
        YamlData::Representation(text, style, None) => *style == ScalarStyle::Plain && text == "<<",
        YamlData::Representation(_, _, Some(tag)) => full(tag) == format!("{CORE}merge"),
        _ => false,
    }
}

/// Returns a value as an error shows it.
fn shown(yaml: &MarkedYaml<'_>) -> String {
    match (&yaml.data, scalar(yaml)) {
        (_, Some(Scalar::Null)) => "nothing".to_owned(),
        (_, Some(Scalar::Boolean(is))) => is.to_string(),
        (_, Some(Scalar::Integer(number))) => number.to_string(),
        (_, Some(Scalar::FloatingPoint(number))) => number.to_string(),
        (_, Some(Scalar::String(text))) => format!("{text:?}"),
        (YamlData::Representation(text, _, Some(tag)), None) => {
            format!("{text:?} with the tag {}", full(tag))
        }
        (YamlData::Tagged(tag, _), _) => format!("a value with the tag {}", full(tag)),
        (YamlData::Sequence(_), _) => "a list".to_owned(),
        (YamlData::Mapping(_), _) => "a map".to_owned(),
        // A document without a value.
        _ => "nothing".to_owned(),
    }
}
