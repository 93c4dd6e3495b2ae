//! The nodes of a YAML document: typed values, and errors that name the place.

use std::path::{Path, PathBuf};

use saphyr::{MarkedYaml, Scalar, YamlData};

/// An error in a limits file, and its place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {message}", path.display(), place.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Line and column, both from 1; `None` if the file cannot be read at all.
    pub place: Option<(usize, usize)>,
    /// The error, and the accepted values.
    pub message: String,
}

/// A part of the file, and its path in the tree: `resources.gpt-4.limits`.
#[derive(Clone)]
pub(super) struct Node<'y> {
    pub(super) at: String,
    pub(super) yaml: &'y MarkedYaml<'y>,
}

pub(super) fn place(yaml: &MarkedYaml<'_>) -> (usize, usize) {
    (yaml.span.start.line(), yaml.span.start.col() + 1)
}

/// The file that errors name.
#[derive(Clone, Copy)]
pub(super) struct Source<'p>(pub(super) &'p Path);

impl Source<'_> {
    pub(super) fn wrong(&self, place: (usize, usize), message: String) -> FileError {
        FileError {
            path: self.0.to_owned(),
            place: Some(place),
            message,
        }
    }

    /// Returns the error of a node that is not as expected.
    pub(super) fn refuse(&self, node: &Node<'_>, takes: &str) -> FileError {
        let name = if node.at.is_empty() {
            "the file"
        } else {
            &node.at
        };
        self.wrong(
            place(node.yaml),
            format!("{name} is {}, must be {takes}", shown(node.yaml)),
        )
    }

    /// Returns the entries of a map, with their keys.
    pub(super) fn entries<'y>(
        &self,
        node: &Node<'y>,
        takes: &str,
    ) -> Result<Vec<(String, Node<'y>)>, FileError> {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return Err(self.refuse(node, takes));
        };
        let entry = |(key, value): (&'y MarkedYaml<'y>, &'y MarkedYaml<'y>)| {
            let YamlData::Value(Scalar::String(name)) = &key.data else {
                let message = format!("a key is {}, must be a name: put it in quotes", shown(key));
                return Err(self.wrong(place(key), message));
            };
            let at = if node.at.is_empty() {
                name.to_string()
            } else {
                format!("{}.{name}", node.at)
            };
            Ok((name.to_string(), Node { at, yaml: value }))
        };
        map.iter().map(entry).collect()
    }

    pub(super) fn unknown(&self, node: &Node<'_>, key: &str, takes: &str) -> FileError {
        let YamlData::Mapping(map) = &node.yaml.data else {
            return self.refuse(node, takes);
        };
        let named = |yaml: &&MarkedYaml<'_>| matches!(&yaml.data, YamlData::Value(Scalar::String(name)) if name == key);
        let at = map
            .keys()
            .find(named)
            .map_or_else(|| place(node.yaml), place);
        let of = if node.at.is_empty() {
            String::new()
        } else {
            format!("{}: ", node.at)
        };
        self.wrong(at, format!("{of}{key:?} is unknown, must be {takes}"))
    }

    pub(super) fn name<T>(
        &self,
        name: &str,
        node: &Node<'_>,
        check: impl Fn(Box<str>) -> Result<T, weirgate_shared::NameError>,
    ) -> Result<T, FileError> {
        check(name.into())
            .map_err(|error| self.wrong(place(node.yaml), format!("{}: {error}", node.at)))
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

    pub(super) fn text(&self, node: &Node<'_>) -> Result<String, FileError> {
        match &node.yaml.data {
            YamlData::Value(Scalar::String(text)) => Ok(text.to_string()),
            _ => Err(self.refuse(node, "a word")),
        }
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
