//! Reads the objects in files, folders and standard input, in the order given, and in a folder by
//! name.
//!
//! Lambda's file names begin with the stream's shard and the time, so this is the order of the
//! writes.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::value::RawValue;

/// A file or folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read: {source}", place.display())]
pub struct SourceError {
    /// Path, or `standard input`.
    pub place: PathBuf,
    /// Reason.
    #[source]
    pub source: std::io::Error,
}

/// A file with one or several objects, or the content of standard input.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// Content of standard input, which is read only once. Files are read in their turn, because
    /// all of them may exceed the memory.
    text: Option<Vec<u8>>,
}

/// One object.
#[derive(Debug)]
pub struct Object {
    /// File, and position in it.
    pub name: String,
    /// Complete text.
    pub text: String,
}

/// A part of a file that is not JSON. The objects after it cannot be found.
#[derive(Debug)]
pub struct Unreadable {
    /// File, and position in it.
    pub name: String,
    /// Parse error.
    pub why: String,
}

/// Returns the sources in `paths`: `-` is `input`, and a folder stands for all files below it.
///
/// # Errors
/// [`SourceError`] for the first one that is missing, before anything is copied.
pub fn open(paths: &[PathBuf], mut input: impl Read) -> Result<Vec<Place>, SourceError> {
    let mut places = vec![];
    for path in paths {
        if path == Path::new("-") {
            let (path, mut text) = (PathBuf::from("standard input"), vec![]);
            input.read_to_end(&mut text).map_err(failed(&path))?;
            places.push(Place { path, text: Some(text) });
        } else {
            walk(path.clone(), &mut places)?;
        }
    }
    Ok(places)
}

fn walk(path: PathBuf, places: &mut Vec<Place>) -> Result<(), SourceError> {
    if !path.metadata().map_err(failed(&path))?.is_dir() {
        places.push(Place { path, text: None });
        return Ok(());
    }
    let entries = path.read_dir().map_err(failed(&path))?;
    let entries: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut entries = entries.map_err(failed(&path))?;
    entries.sort();
    entries.into_iter().try_for_each(|entry| walk(entry, places))
}

fn failed(place: &Path) -> impl Fn(std::io::Error) -> SourceError {
    move |source| SourceError { place: place.to_owned(), source }
}

impl Place {
    /// Returns its objects in their order.
    ///
    /// # Errors
    /// [`SourceError`] if the file cannot be read.
    pub fn objects(self) -> Result<Vec<Result<Object, Unreadable>>, SourceError> {
        let Self { path, text } = self;
        let text = text.map_or_else(|| std::fs::read(&path), Ok).map_err(failed(&path))?;
        let texts: Vec<_> = texts(&text).collect();
        let name = |at: usize| match texts.len() {
            0 | 1 => path.display().to_string(),
            _ => format!("{} (object {})", path.display(), at + 1),
        };
        if texts.is_empty() {
            return Ok(vec![Err(Unreadable { name: name(0), why: "it is empty".to_owned() })]);
        }
        let object = |(at, found): (usize, &serde_json::Result<&RawValue>)| match found {
            Ok(text) => Ok(Object { name: name(at), text: text.get().to_owned() }),
            Err(error) => {
                Err(Unreadable { name: name(at), why: format!("it is no JSON: {error}") })
            }
        };
        Ok(texts.iter().enumerate().map(object).collect())
    }
}

/// Returns the JSON values in a text, up to the first invalid one.
fn texts(text: &[u8]) -> impl Iterator<Item = serde_json::Result<&RawValue>> {
    let mut has_ended = false;
    // The library's own iterator continues after a number with an invalid suffix.
    let goes_on =
        move |found: &serde_json::Result<_>| !std::mem::replace(&mut has_ended, found.is_err());
    serde_json::Deserializer::from_slice(text).into_iter().take_while(goes_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_come_in_the_order_given() {
        let place = open(&["-".into()], "{\"c\":1}\n{\"a\":2} {\"b\":3}".as_bytes())
            .unwrap()
            .pop()
            .unwrap();
        let objects: Vec<_> = place.objects().unwrap().into_iter().map(Result::unwrap).collect();
        let objects: Vec<_> =
            objects.iter().map(|object| (object.name.as_str(), object.text.as_str())).collect();
        let expected = [
            ("standard input (object 1)", "{\"c\":1}"),
            ("standard input (object 2)", "{\"a\":2}"),
            ("standard input (object 3)", "{\"b\":3}"),
        ];
        assert_eq!(objects, expected);
    }

    #[test]
    fn what_is_no_json_is_named_and_what_is_before_it_is_read() {
        for (input, good) in [("{} {\"payload\":", 1), ("", 0), ("\u{0}", 0), ("0\u{0}{}", 0)] {
            let place = open(&["-".into()], input.as_bytes()).unwrap().pop().unwrap();
            let objects = place.objects().unwrap();
            assert_eq!(objects.iter().filter(|object| object.is_ok()).count(), good, "{input}");
            assert_eq!(objects.len(), good + 1, "{input}");
            assert!(objects.last().unwrap().is_err(), "{input}");
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_named() {
        let error = open(&["/no/such/folder".into()], std::io::empty()).unwrap_err().to_string();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}
