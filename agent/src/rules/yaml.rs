//! The nodes of a YAML document, with bounds and with their places.

use std::path::Path;

use saphyr::{MarkedYaml, Scalar, ScanError, YamlData, YamlLoader};
use saphyr_parser::{Event, Parser, Span, SpannedEventReceiver};
use weirgate::FileError;

/// Deepest nesting of nodes, 40: descriptors of envoyproxy/ratelimit nest by two for each entry.
/// The tree is dropped by recursion, so a few kilobytes of nesting would overflow the stack.
const DEPTH: usize = 40;
/// Most nodes that all aliases together may stand for, 10,000.
const ALIASED: usize = 10_000;

/// A part of the file, and its path in the tree: `domains.edge[0].take`.
#[derive(Clone)]
pub(super) struct Node<'y> {
    pub(super) at: String,
    yaml: &'y MarkedYaml<'y>,
}

/// The file that errors name, and its text.
#[derive(Clone, Copy)]
pub(super) struct Source<'p> {
    path: &'p Path,
    text: &'p str,
}

/// Calls `read` with the one document of the text.
pub(super) fn with_document<T>(
    path: &Path,
    text: &str,
    read: impl FnOnce(Source<'_>, Node<'_>) -> Result<T, FileError>,
) -> Result<T, FileError> {
    let source = Source { path, text };
    let documents = load(text).map_err(|error| {
        let at = error.marker();
        source.wrong((at.line(), at.col() + 1), error.info().to_owned())
    })?;
    match &documents[..] {
        [] => Err(source.wrong((1, 1), "the file is empty: it needs rules".to_owned())),
        [document] => read(
            source,
            Node {
                at: String::new(),
                yaml: document,
            },
        ),
        [_, second, ..] => Err(source.wrong(
            place(second),
            "a second document begins: the file must have one".to_owned(),
        )),
    }
}

/// Returns the documents of a text, at most two.
fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, ScanError> {
    let mut loader = YamlLoader::default();
    loader.alias_limit(ALIASED);
    let (mut depth, mut documents) = (0_usize, 0);
    // Not with `load_from_str`, which recurses into the nesting.
    for event in Parser::new_from_iter(text.chars()) {
        let (event, span): (Event<'_>, Span) = event?;
        match event {
            Event::SequenceStart(..) | Event::MappingStart(..) => depth += 1,
            Event::SequenceEnd | Event::MappingEnd => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH {
            let message = "nested deeper than anything that a rules file can say";
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

fn place(yaml: &MarkedYaml<'_>) -> (usize, usize) {
    (yaml.span.start.line(), yaml.span.start.col() + 1)
}

impl Node<'_> {
    pub(super) fn place(&self) -> (usize, usize) {
        place(self.yaml)
    }

    /// Returns the node's name in an error.
    pub(super) fn name(&self) -> &str {
        if self.at.is_empty() {
            "the file"
        } else {
            &self.at
        }
    }
}

impl<'p> Source<'p> {
    pub(super) fn wrong(&self, place: (usize, usize), message: String) -> FileError {
        FileError {
            path: self.path.to_owned(),
            place: Some(place),
            message,
        }
    }

    /// Returns an error about the node.
    pub(super) fn error(&self, node: &Node<'_>, message: &str) -> FileError {
        self.wrong(node.place(), format!("{}: {message}", node.name()))
    }

    /// Returns the error of a node that is not as expected.
    pub(super) fn refuse(&self, node: &Node<'_>, takes: &str) -> FileError {
        let message = format!("{} is {}, must be {takes}", node.name(), shown(node.yaml));
        self.wrong(node.place(), message)
    }

    /// Returns the entries of a map, with their keys and the nodes of the keys.
    pub(super) fn entries<'y>(
        &self,
        node: &Node<'y>,
        takes: &str,
    ) -> Result<Vec<(String, Node<'y>)>, FileError> {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let entry = |(key, value): (&'y MarkedYaml<'y>, &'y MarkedYaml<'y>)| {
            let at = node.at.clone();
            let name = self.scalar(&Node { at, yaml: key }).ok_or_else(|| {
                let message = format!("a key is {}, must be a name", shown(key));
                self.wrong(place(key), message)
            })?;
            let at = match node.at.is_empty() {
                true => name.clone(),
                false => format!("{}.{name}", node.at),
            };
            Ok((name, Node { at, yaml: value }))
        };
        map.iter().map(entry).collect()
    }

    /// Returns the error of an unknown key.
    pub(super) fn unknown(&self, node: &Node<'_>, key: &str, takes: &str) -> FileError {
        let is_named = |yaml: &&MarkedYaml<'_>| matches!(&yaml.data, YamlData::Value(Scalar::String(name)) if name == key);
        let at = match &node.yaml.data {
            YamlData::Mapping(map) => map.keys().find(is_named).map(place),
            _ => None,
        };
        let message = format!("{}: {key:?} is unknown, must be {takes}", node.name());
        self.wrong(at.unwrap_or_else(|| node.place()), message)
    }

    /// Returns the items of a list.
    pub(super) fn items<'y>(
        &self,
        node: &Node<'y>,
        takes: &str,
    ) -> Result<Vec<Node<'y>>, FileError> {
        let YamlData::Sequence(list) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let item = |(place, yaml)| Node {
            at: format!("{}[{place}]", node.at),
            yaml,
        };
        Ok(list.iter().enumerate().map(item).collect())
    }

    pub(super) fn integer(&self, node: &Node<'_>) -> Result<i64, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::Integer(number)) => Ok(*number),
            _ => Err(self.refuse(node, "a whole number")),
        }
    }

    pub(super) fn boolean(&self, node: &Node<'_>) -> Result<bool, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::Boolean(is)) => Ok(*is),
            _ => Err(self.refuse(node, "true or false")),
        }
    }

    /// Returns a text as it is written: `404` and `1.10` are texts too.
    pub(super) fn text(&self, node: &Node<'_>) -> Result<String, FileError> {
        self.scalar(node).ok_or_else(|| self.refuse(node, "a text"))
    }

    fn scalar(&self, node: &Node<'_>) -> Option<String> {
        match &node.yaml.data {
            YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
            YamlData::Value(Scalar::Null) => None,
            // The value has lost its leading zeros and its precision.
            YamlData::Value(_) => {
                let (start, end) = (node.yaml.span.start.index(), node.yaml.span.end.index());
                let written = self.text.chars().skip(start);
                let written: String = written.take(end.saturating_sub(start)).collect();
                Some(written.trim().to_owned())
            }
            _ => None,
        }
    }

    /// Returns whether the node is a map.
    pub(super) fn is_map(&self, node: &Node<'_>) -> bool {
        matches!(node.yaml.data, YamlData::Mapping(_))
    }
}

/// Returns a value as an error shows it.
fn shown(yaml: &MarkedYaml<'_>) -> String {
    match &yaml.data {
        YamlData::Value(Scalar::Null) => "nothing".to_owned(),
        YamlData::Value(Scalar::Boolean(is)) => is.to_string(),
        YamlData::Value(Scalar::Integer(number)) => number.to_string(),
        YamlData::Value(Scalar::FloatingPoint(number)) => number.to_string(),
        YamlData::Value(Scalar::String(text)) => format!("{text:?}"),
        YamlData::Sequence(_) => "a list".to_owned(),
        YamlData::Mapping(_) => "a map".to_owned(),
        _ => "something else".to_owned(),
    }
}
