//! Files that change, vanish and come back: what is in force.

use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use tokio::time::sleep;
use weirgate_shared::files::{FileError, MAX_BYTES, TextFile, Watched, What};

const SECOND: Duration = Duration::from_secs(1);

/// A folder of its own, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("weirgate-watched-{}-{count}", std::process::id());
        let folder = Self(std::env::temp_dir().join(name));
        fs::create_dir_all(&folder.0).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Takes any text, unless it is empty or says that it is broken.
fn parse(files: &[TextFile]) -> Result<String, FileError> {
    let texts: String = files.iter().map(|file| file.text.as_str()).collect();
    match texts.trim().is_empty() || texts.contains("broken") {
        false => Ok(texts),
        true => Err(FileError {
            path: files[0].path.clone(),
            place: Some((1, 1)),
            message: format!("{texts:?} is broken"),
        }),
    }
}

fn what(takes_folders: bool) -> What<String> {
    What { name: "texts", takes_folders, parse }
}

fn watched(path: &Path) -> Watched<String> {
    Watched::open(what(true), vec![path.to_owned()], 0).unwrap()
}

/// Returns what is in force once the files have been checked twice.
async fn settled(watched: &Watched<String>) -> Arc<String> {
    for _ in 0..3 {
        drop(watched.get(0));
        // Time waits for the reads.
        sleep(SECOND).await;
    }
    watched.get(0)
}

/// Returns the stamps of a file, to be given to another one.
fn stamps(path: &Path) -> FileTimes {
    let metadata = fs::metadata(path).unwrap();
    FileTimes::new()
        .set_accessed(metadata.accessed().unwrap())
        .set_modified(metadata.modified().unwrap())
}

/// Gives a file stamps.
fn stamp(path: &Path, stamps: FileTimes) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_times(stamps).unwrap();
}

/// How a file gets another content.
type Replacement = (&'static str, fn(&Path, &str));
/// How a file is lost.
type Loss = (&'static str, fn(&Path));

/// The ways in which a file gets another content.
const REPLACEMENTS: [Replacement; 8] = [
    ("written in place", |path, text| fs::write(path, text).unwrap()),
    ("with the same stamp", |path, text| {
        let stamps = stamps(path);
        fs::write(path, text).unwrap();
        stamp(path, stamps);
    }),
    ("with an older stamp", |path, text| {
        fs::write(path, text).unwrap();
        let old = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        stamp(path, old);
    }),
    ("renamed onto it, with the same stamp", |path, text| {
        let other = path.with_extension("new");
        fs::write(&other, text).unwrap();
        stamp(&other, stamps(path));
        fs::rename(&other, path).unwrap();
    }),
    ("removed and written again", |path, text| {
        fs::remove_file(path).unwrap();
        fs::write(path, text).unwrap();
    }),
    ("in the same bytes of the file", |path, text| {
        let mut file = File::options().write(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.set_len(u64::try_from(text.len()).unwrap()).unwrap();
    }),
    ("as a link to another file", |path, text| {
        let other = path.with_extension("target");
        fs::write(&other, text).unwrap();
        fs::remove_file(path).unwrap();
        symlink(&other, path).unwrap();
    }),
    ("as a link that is switched, as in a volume of Kubernetes", |path, text| {
        let folder = path.parent().unwrap();
        let version = format!("..version-{}", text.len());
        let _ = fs::create_dir(folder.join(&version));
        fs::write(folder.join(&version).join("f.yaml"), text).unwrap();
        let _ = fs::remove_file(folder.join("..new"));
        symlink(&version, folder.join("..new")).unwrap();
        fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
        if !path.is_symlink() {
            fs::remove_file(path).unwrap();
            symlink("..data/f.yaml", path).unwrap();
        }
    }),
];

#[tokio::test(start_paused = true)]
async fn a_replacement_of_any_stamp_counts_by_its_content() {
    for (how, replace) in REPLACEMENTS {
        let folder = Folder::new();
        folder.write("f.yaml", "one");
        let path = folder.path("f.yaml");
        for place in [&path, &folder.0] {
            replace(&path, "one");
            let watched = watched(place);
            assert_eq!(*watched.get(0), "one", "{how}");
            // The second one has the length of the first.
            for text in ["two", "three", "four"] {
                replace(&path, text);
                assert_eq!(*settled(&watched).await, text, "{how}");
                assert_eq!(watched.error(), None, "{how}");
            }
        }
    }
}

/// The ways in which files are gone or cannot be read.
const LOSSES: [Loss; 9] = [
    ("no file", |path| fs::remove_file(path).unwrap()),
    ("no folder", |path| fs::remove_dir_all(path.parent().unwrap()).unwrap()),
    ("an empty file", |path| fs::write(path, "").unwrap()),
    ("a blank file", |path| fs::write(path, "\n \n").unwrap()),
    ("a folder in its place", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    }),
    ("a link to nothing", |path| {
        fs::remove_file(path).unwrap();
        symlink("nowhere", path).unwrap();
    }),
    ("no text", |path| fs::write(path, [0xff, 0xfe]).unwrap()),
    ("a broken one", |path| fs::write(path, "broken").unwrap()),
    ("too large a one", |path| {
        let file = File::create(path).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
    }),
];

#[tokio::test(start_paused = true)]
async fn files_that_are_lost_change_nothing_until_they_are_whole_again() {
    for (how, lose) in LOSSES {
        let folder = Folder::new();
        folder.write("f.yaml", "one");
        let path = folder.path("f.yaml");
        for (place, takes_folders) in [(&path, false), (&path, true), (&folder.0, true)] {
            fs::write(&path, "one").unwrap();
            let watched = Watched::open(what(takes_folders), vec![place.clone()], 0).unwrap();
            lose(&path);
            assert_eq!(*settled(&watched).await, "one", "{how}");
            let error = watched.error().unwrap_or_else(|| panic!("{how}: no error"));
            assert!(error.path.starts_with(&folder.0), "{how}: {error}");
            let _ = fs::remove_dir_all(&folder.0);
            fs::create_dir_all(&folder.0).unwrap();
            for text in ["one", "two"] {
                fs::write(&path, text).unwrap();
                assert_eq!(*settled(&watched).await, text, "{how}");
                assert_eq!(watched.error(), None, "{how}");
            }
        }
    }
}

/// A deployment that is not atomic, or a file that was moved away, switches no part of them off.
#[tokio::test(start_paused = true)]
async fn one_of_several_files_that_is_gone_changes_nothing() {
    for gone in ["a.yaml", "b.yml", "c.yaml"] {
        let folder = Folder::new();
        for name in ["a.yaml", "b.yml", "c.yaml"] {
            folder.write(name, name);
        }
        let watched = watched(&folder.0);
        fs::rename(folder.path(gone), folder.path("aside")).unwrap();
        folder.write("d.yaml", "d.yaml");
        assert_eq!(*settled(&watched).await, "a.yamlb.ymlc.yaml");
        let error = watched.error().unwrap();
        assert_eq!(error.path, folder.path(gone));
        assert!(error.message.contains("put it back"), "{error}");
        fs::rename(folder.path("aside"), folder.path(gone)).unwrap();
        assert_eq!(*settled(&watched).await, "a.yamlb.ymlc.yamld.yaml");
        assert_eq!(watched.error(), None);
    }
}

#[test]
fn nothing_starts_with_files_that_are_lost() {
    for (how, lose) in LOSSES {
        let folder = Folder::new();
        folder.write("f.yaml", "one");
        lose(&folder.path("f.yaml"));
        for place in [folder.path("f.yaml"), folder.0.clone()] {
            let error = Watched::open(what(true), vec![place], 0).expect_err(how);
            assert!(!error.message.is_empty());
        }
    }
    let folder = Folder::new();
    folder.write(".hidden.yaml", "one");
    folder.write("notes.txt", "one");
    let error = Watched::open(what(true), vec![folder.0.clone()], 0).expect_err("no rules");
    assert!(error.message.contains("must have a file that ends in .yaml"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_may_start_with_nothing_waits_for_files_and_refuses_broken_ones() {
    let folder = Folder::new();
    let open = || Watched::open_or(what(true), vec![folder.0.clone()], 0, "nothing".to_owned());
    fs::remove_dir_all(&folder.0).unwrap();
    let watched = open().unwrap();
    assert_eq!(*settled(&watched).await, "nothing");
    fs::create_dir_all(&folder.0).unwrap();
    assert_eq!(*settled(&watched).await, "nothing");
    assert_eq!(*open().unwrap().get(0), "nothing");
    folder.write("f.yaml", "\n");
    assert_eq!(*open().unwrap().get(0), "nothing");
    folder.write("f.yaml", "one");
    assert_eq!(*settled(&watched).await, "one");
    fs::remove_file(folder.path("f.yaml")).unwrap();
    assert_eq!(*settled(&watched).await, "one", "only the start is without files");
    folder.write("f.yaml", "broken");
    assert!(open().is_err());
    // One of several that is missing is not nothing.
    folder.write("f.yaml", "one");
    let paths = vec![folder.path("f.yaml"), folder.path("absent")];
    assert!(Watched::open_or(what(true), paths, 0, String::new()).is_err());
    assert!(Watched::open_or(what(true), vec![], 0, String::new()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn no_half_of_a_file_that_had_an_end_counts() {
    let folder = Folder::new();
    let path = folder.path("f.yaml");
    let (before, after) = ("a: 1\nb: 2\n...\n", "c: 3\nd: 4 ...\n# more\n...\n");
    folder.write("f.yaml", before);
    let watched = watched(&path);
    // Without the last line break it is whole.
    for cut in 0..after.len() - 1 {
        folder.write("f.yaml", &after[..cut]);
        assert_eq!(*settled(&watched).await, before, "{:?}", &after[..cut]);
        assert!(watched.error().is_some(), "{:?}", &after[..cut]);
    }
    folder.write("f.yaml", after);
    assert_eq!(*settled(&watched).await, after);
    assert_eq!(watched.error(), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_in_parts_counts_once_it_has_rested() {
    let folder = Folder::new();
    folder.write("f.yaml", "0\n");
    let watched = watched(&folder.path("f.yaml"));
    let mut text = String::new();
    for part in 1..50 {
        text += &format!("{part}\n");
        folder.write("f.yaml", &text);
        assert_eq!(*watched.get(0), "0\n");
        sleep(SECOND * 9 / 10).await;
    }
    assert_eq!(*settled(&watched).await, text);
}

#[tokio::test(start_paused = true)]
async fn one_call_is_enough_to_notice_a_change_and_a_wall_clock_shows_a_freeze() {
    let folder = Folder::new();
    folder.write("f.yaml", "one");
    let watched = watched(&folder.path("f.yaml"));
    folder.write("f.yaml", "two");
    assert_eq!(*watched.get(999), "one");
    sleep(SECOND / 2).await;
    assert_eq!(*watched.get(1_000), "one", "the process was frozen: a check begins");
    sleep(SECOND / 2).await;
    for wall in 2..9 {
        let found = watched.get(wall * 1_000);
        assert_eq!(*found, "one", "two reads that follow each other at once are one");
        sleep(SECOND / 100).await;
    }
    sleep(SECOND * 11 / 10).await;
    assert_eq!(*watched.get(8_000), "two");
}

#[tokio::test(start_paused = true)]
async fn a_watch_notices_changes_without_calls() {
    let folder = Folder::new();
    folder.write("f.yaml", "one");
    let watched = watched(&folder.path("f.yaml"));
    let watching = watched.clone();
    let task = tokio::spawn(async move { watching.watch(|| 0).await });
    sleep(SECOND / 2).await;
    folder.write("f.yaml", "broken");
    sleep(SECOND * 3).await;
    assert!(watched.error().is_some());
    folder.write("f.yaml", "two");
    sleep(SECOND * 3).await;
    assert_eq!(watched.error(), None);
    task.abort();
}

/// Without a runtime the caller's thread reads.
#[test]
fn a_program_without_a_runtime_notices_changes() {
    let folder = Folder::new();
    folder.write("f.yaml", "one");
    let watched = watched(&folder.path("f.yaml"));
    folder.write("f.yaml", "two");
    let end = std::time::Instant::now() + Duration::from_secs(60);
    for wall in 1.. {
        if *watched.get(wall * 1_000) == "two" {
            break;
        }
        assert!(std::time::Instant::now() < end, "nothing was noticed");
        std::thread::yield_now();
    }
}
