//! Reads files and folders.

use std::fs::{File, metadata, read_dir};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::FileError;

/// Longest file, 16 MiB.
pub const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// A file, and its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFile {
    /// Where it is.
    pub path: PathBuf,
    /// All of it.
    pub text: String,
}

impl TextFile {
    /// Returns whether the last line is `...`, the end of a document. Comments may follow.
    pub(crate) fn has_end(&self) -> bool {
        let mut lines = self.text.lines().rev().map(str::trim_end);
        let last = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        let rest = last.and_then(|line| line.strip_prefix("..."));
        rest.is_some_and(|rest| rest.is_empty() || rest.trim_start().starts_with('#'))
    }
}

/// Why files were not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unread {
    pub(crate) error: FileError,
    /// Whether there is no such file or folder, or a folder without files.
    pub(crate) is_missing: bool,
}

impl Unread {
    fn new(path: &Path, error: &io::Error) -> Self {
        Self {
            is_missing: error.kind() == io::ErrorKind::NotFound,
            error: FileError {
                path: path.to_owned(),
                place: None,
                message: format!(
                    "cannot be read: {}; check the path and its permissions",
                    reason(error)
                ),
            },
        }
    }
}

/// Returns the text of an error, without its number in the operating system.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" (os error ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// Reads a file.
///
/// # Errors
/// [`FileError`] with the reason: it is missing, no regular file, above [`MAX_BYTES`], or no UTF-8.
pub fn read_file(path: impl Into<PathBuf>) -> Result<TextFile, FileError> {
    read_one(path.into()).map_err(|unread| unread.error)
}

/// Reads files. A folder stands for its files that end in `.yaml` or `.yml`, in the order of their
/// names; hidden ones are left out.
pub(crate) fn read_all(paths: &[PathBuf], takes_folders: bool) -> Result<Vec<TextFile>, Unread> {
    let mut files = vec![];
    for path in paths {
        match takes_folders && path.is_dir() {
            true => files.extend(read_folder(path)?),
            false => files.push(read_one(path.clone())?),
        }
    }
    Ok(files)
}

fn read_folder(folder: &Path) -> Result<Vec<TextFile>, Unread> {
    let unreadable = |error| Unread::new(folder, &error);
    let mut paths = vec![];
    for entry in read_dir(folder).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.retain(|path| {
        let end = path.extension().and_then(|end| end.to_str());
        let name = path.file_name().and_then(|name| name.to_str());
        matches!(end, Some("yaml" | "yml")) && !name.is_some_and(|name| name.starts_with('.'))
    });
    if paths.is_empty() {
        let message = "the folder must have a file that ends in .yaml or .yml, and has none";
        return Err(Unread {
            is_missing: true,
            error: FileError { path: folder.to_owned(), place: None, message: message.to_owned() },
        });
    }
    paths.sort();
    paths.into_iter().map(read_one).collect()
}

fn read_one(path: PathBuf) -> Result<TextFile, Unread> {
    let text = read_text(&path).map_err(|error| Unread::new(&path, &error))?;
    Ok(TextFile { path, text })
}

fn read_text(path: &Path) -> io::Result<String> {
    // Reading a pipe could wait indefinitely.
    if !metadata(path)?.is_file() {
        return Err(io::Error::other("it must be a regular file"));
    }
    let mut text = String::new();
    let read = File::open(path)?.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    match u64::try_from(read) {
        Ok(bytes) if bytes <= MAX_BYTES => Ok(text),
        _ => Err(io::Error::other(format!("it must have {MAX_BYTES} bytes at most, and has more"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreadable_file_is_named_with_the_reason_and_the_remedy() {
        let error = read_file("/nowhere/limits.yaml").unwrap_err().to_string();
        let reason =
            "cannot be read: No such file or directory; check the path and its permissions";
        assert!(error.starts_with("/nowhere/limits.yaml"), "{error}");
        assert!(error.ends_with(reason), "{error}");
    }

    #[test]
    fn the_end_of_a_file_is_its_last_line() {
        let has_end = |text: &str| {
            let (path, text) = (PathBuf::new(), text.to_owned());
            TextFile { path, text }.has_end()
        };
        for text in [
            "...",
            "a: 1\n...",
            "a: 1\n...\n",
            "a: 1\n...\r\n",
            "a: 1\n... # end\n\n",
            "a: 1\n...  \n# written by a program\n",
        ] {
            assert!(has_end(text), "{text:?}");
        }
        for text in ["", "a: 1", "a: 1\n..", "a: 1\n ...", "...\na: 1", "....", "a: ..."] {
            assert!(!has_end(text), "{text:?}");
        }
    }
}
