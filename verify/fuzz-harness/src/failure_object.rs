//! Objects of the failure bucket, as a replay reads them.

use weirgate_aggregator::replay::object::{TableArn, event, tables};
use weirgate_aggregator::replay::{Object, open};

use crate::stream;

/// Reads objects that stand after each other, puts them in the order of their writes, and goes on
/// to their events and to the tables that these are of.
pub fn failure_object(bytes: &[u8]) {
    let objects = read(bytes);
    for object in &objects {
        let event = match event(&object.text) {
            Ok(event) => event,
            Err(why) => {
                assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
                continue;
            }
        };
        for table in tables(&event).into_iter().flatten().flatten() {
            let (text, name) = (table.to_string(), table.name());
            assert!(text.ends_with(&format!(":table/{name}")) && !name.is_empty(), "{text}");
            assert_eq!(TableArn::of_stream(&format!("{text}/stream/label")).as_ref(), Some(&table));
        }
        stream(event.as_bytes());
    }
    if objects.len() > 1000 {
        return;
    }
    let texts: Vec<_> = objects.iter().map(|object| object.text.as_str()).collect();
    let again = |texts: &[&str]| {
        read(texts.join("\n").as_bytes()).into_iter().map(|object| object.text).collect::<Vec<_>>()
    };
    assert_eq!(again(&texts), texts, "what is in order stays in order");
    let (mut found, mut known) = (again(&texts.iter().rev().copied().collect::<Vec<_>>()), texts);
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(found, known, "nothing is lost and nothing comes twice");
}

/// Returns the objects in a text, up to the first invalid one.
fn read(bytes: &[u8]) -> Vec<Object> {
    let place = open(&["-".into()], bytes)
        .expect("bytes can be read")
        .pop()
        .expect("standard input is a place");
    let read = place.objects().expect("standard input was read");
    let unreadable = read.iter().position(Result::is_err);
    assert!(
        unreadable.is_none_or(|at| at + 1 == read.len()),
        "what cannot be told apart comes once, and last"
    );
    assert!(!read.is_empty());
    read.into_iter().flatten().collect()
}
