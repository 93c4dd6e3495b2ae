//! Files, folders and standard input to the objects in them, oldest first.
//!
//! In the order of their writes, what is counted is taken off the front of a missing range. In any other order it would be
//! cut into many, of which a snapshot keeps only the last.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::object::event;

/// Something that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{} cannot be read: {source}", place.display())]
pub struct SourceError {
    /// What.
    pub place: PathBuf,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// A file with one object or several after each other, or what came from standard input.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// Of standard input, which is read only once. Files are read when it is their turn: a bad day leaves more than fits
    /// into memory.
    text: Option<Vec<u8>>,
    oldest: Oldest,
}

/// The text of one object.
#[derive(Debug)]
pub struct Object {
    /// Where it is.
    pub name: String,
    /// All of it.
    pub text: String,
}

/// A part of a file that is no JSON; nothing behind it can be told apart either.
#[derive(Debug)]
pub struct Unreadable {
    /// Where it is.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
}

/// When the first write of an object was, and its place in the stream; what cannot be read comes last.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Oldest {
    Of(u64, usize, String),
    Unknown,
}

/// What `paths` name, oldest first; `-` is `input`, a folder all files in it and below it.
///
/// # Errors
/// [`SourceError`] for the first one that cannot be read, before anything is counted.
pub fn open(paths: &[PathBuf], mut input: impl Read) -> Result<Vec<Place>, SourceError> {
    let mut places = vec![];
    let mut files = vec![];
    for path in paths {
        if path == Path::new("-") {
            let mut text = vec![];
            let failed = |source| SourceError { place: "standard input".into(), source };
            input.read_to_end(&mut text).map_err(failed)?;
            places.push(Place { oldest: oldest(&text), path: "standard input".into(), text: Some(text) });
        } else {
            walk(path, &mut files)?;
        }
    }
    files.sort();
    let mut known = HashSet::new();
    for path in files {
        // By whichever of its names: a second time would be told as counted before, or be counted without `v` once more.
        let real = path.canonicalize().map_err(|source| SourceError { place: path.clone(), source })?;
        if !known.insert(real) {
            continue;
        }
        let text = read(&path)?;
        places.push(Place { oldest: oldest(&text), path, text: None });
    }
    places.sort_by(|one, other| one.oldest.cmp(&other.oldest));
    Ok(places)
}

fn walk(path: &Path, files: &mut Vec<PathBuf>) -> Result<(), SourceError> {
    let failed = |source| SourceError { place: path.to_owned(), source };
    if !path.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    for entry in std::fs::read_dir(path).map_err(failed)? {
        walk(&entry.map_err(failed)?.path(), files)?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    std::fs::read(path).map_err(|source| SourceError { place: path.to_owned(), source })
}

impl Place {
    /// Its objects, oldest first.
    ///
    /// # Errors
    /// [`SourceError`] if the file cannot be read any more.
    pub fn objects(mut self) -> Result<Vec<Result<Object, Unreadable>>, SourceError> {
        let text = match self.text.take() {
            Some(text) => text,
            None => read(&self.path)?,
        };
        let texts: Vec<_> = texts(&text).collect();
        let name = |at: usize| match texts.len() {
            0 | 1 => self.path.display().to_string(),
            _ => format!("{} (object {})", self.path.display(), at + 1),
        };
        if texts.is_empty() {
            return Ok(vec![Err(Unreadable { name: name(0), why: "it is empty".to_owned() })]);
        }
        let mut objects = vec![];
        for (at, found) in texts.iter().enumerate() {
            let name = name(at);
            objects.push(match found {
                Ok(text) => (first(text), Ok(Object { name, text: text.get().to_owned() })),
                Err(error) => (Oldest::Unknown, Err(Unreadable { name, why: format!("it is no JSON: {error}") })),
            });
        }
        objects.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(objects.into_iter().map(|(_, object)| object).collect())
    }
}

/// The JSON values in a text, one after the other; it ends with the first that is none.
fn texts(text: &[u8]) -> impl Iterator<Item = serde_json::Result<&RawValue>> {
    let mut has_ended = false;
    // After a number with something strange behind it the library's own goes on.
    let goes_on = move |found: &serde_json::Result<_>| !std::mem::replace(&mut has_ended, found.is_err());
    serde_json::Deserializer::from_slice(text).into_iter().take_while(goes_on)
}

fn oldest(text: &[u8]) -> Oldest {
    texts(text).map(|found| found.map_or(Oldest::Unknown, first)).min().unwrap_or(Oldest::Unknown)
}

fn first(object: &RawValue) -> Oldest {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "Records")]
        records: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Record {
        dynamodb: Change,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Change {
        approximate_creation_date_time: f64,
        sequence_number: String,
    }
    let Ok(event) = event(object.get()) else { return Oldest::Unknown };
    let Ok(Event { records }) = serde_json::from_str(&event) else { return Oldest::Unknown };
    // A record that does not say when it was takes nothing from the others.
    let changes = records.into_iter().filter_map(|record| serde_json::from_str(record.get()).ok());
    let key = |Record { dynamodb: change }: Record| {
        // Sequence numbers have 21 to 40 digits: the longer one is the larger one.
        let Change { approximate_creation_date_time: seconds, sequence_number: number } = change;
        Oldest::Of(order(seconds), number.len(), number)
    };
    changes.map(key).min().unwrap_or(Oldest::Unknown)
}

/// Numbers that order as the seconds do: the bits of a positive float rise with it.
fn order(seconds: f64) -> u64 {
    seconds.max(0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(seconds: &str, number: &str) -> String {
        format!(
            r#"{{"payload":{{"Records":[{{"dynamodb":{{"ApproximateCreationDateTime":{seconds},"SequenceNumber":"{number}"}}}}]}}}}"#
        )
    }

    #[test]
    fn objects_come_in_the_order_of_their_writes() {
        let input = [object("1.7E9", "900"), object("1700000000", "1000"), object("1699999999.5", "2000")].join("\n");
        let places = open(&["-".into()], input.as_bytes()).unwrap();
        let objects: Vec<_> =
            places.into_iter().flat_map(|place| place.objects().unwrap()).map(Result::unwrap).collect();
        let names: Vec<_> = objects.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["standard input (object 3)", "standard input (object 1)", "standard input (object 2)"]);
    }

    /// Otherwise one record that cannot be read would send its object to the end, and cut the missing range in front of it.
    #[test]
    fn an_object_is_as_old_as_its_records_that_say_when_they_were() {
        let record = r#"{"dynamodb":{"ApproximateCreationDateTime":7,"SequenceNumber":"1"}}"#;
        let of = |records: &str| {
            let text = format!(r#"{{"Records":[{records}]}}"#);
            let object: Box<RawValue> = serde_json::from_str(&text).unwrap();
            first(&object)
        };
        let known = of(record);
        assert!(known < Oldest::Unknown);
        for broken in [
            "{}",
            "7",
            "null",
            r#"{"dynamodb":null}"#,
            r#"{"dynamodb":{"SequenceNumber":"1"}}"#,
            r#"{"dynamodb":{"ApproximateCreationDateTime":"7","SequenceNumber":"1"}}"#,
        ] {
            assert_eq!(of(broken), Oldest::Unknown, "{broken}");
            assert_eq!(of(&format!("{broken},{record}")), known, "{broken}");
            assert_eq!(of(&format!("{record},{broken}")), known, "{broken}");
        }
    }

    #[test]
    fn what_is_no_json_is_named_and_what_is_before_it_is_read() {
        for (input, good) in [
            (format!("{} {{\"payload\":", object("1", "1")), 1),
            ("".to_owned(), 0),
            ("\u{0}".to_owned(), 0),
            (format!("0\u{0}{}", object("1", "1")), 0),
        ] {
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
