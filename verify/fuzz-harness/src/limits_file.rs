//! Limits files.

use std::path::PathBuf;

use weirgate::LimitsFile;

/// Opens a file of these bytes.
pub fn limits_file(bytes: &[u8]) {
    // The one way in is a path: a file of the thread's own, as tests and fuzzers run side by side.
    let name = format!("weirgate-{}-{:?}.yaml", std::process::id(), std::thread::current().id());
    let path: PathBuf = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).expect("the folder for temporary files takes one");
    let opened = LimitsFile::open(&path);
    std::fs::remove_file(&path).expect("the file is there");
    match opened {
        Ok(_) => {}
        Err(error) => {
            // To YAML a carriage return alone ends a line too.
            let lines = bytes.split(|byte| b"\r\n".contains(byte)).count();
            // A text that is no Unicode has no places.
            let is_placed = error
                .place
                .is_none_or(|(line, column)| (1..=lines + 1).contains(&line) && column > 0);
            assert!(is_placed, "{error} is at no place of {lines} lines");
            assert!(error.place.is_some() || std::str::from_utf8(bytes).is_err(), "{error}");
        }
    }
}
