//! Values are what YAML says, however they are written, and what cannot be said is refused.

use std::path::Path;

use proptest::prelude::*;
use weirgate_shared::files::{FileError, Format, Node, Source, with_document};

const FORMAT: Format = Format { needs: "something", depth: 20 };

fn read<T>(
    text: &str,
    read: impl FnOnce(Source<'_>, Node<'_>) -> Result<T, FileError>,
) -> Result<T, FileError> {
    with_document(FORMAT, Path::new("f.yaml"), text, read)
}

/// Returns the last value of a map by `get`.
fn value<T>(
    text: &str,
    get: impl FnOnce(Source<'_>, &Node<'_>) -> Result<T, FileError>,
) -> Result<T, String> {
    let value = read(text, |source, file| {
        let entries = source.entries(&file, "a map")?;
        get(source, &entries.last().unwrap().1)
    });
    value.map_err(|error| error.to_string())
}

/// A value as YAML can write it: its syntax, and the text, number or truth value that it is.
type Written<'t> = (&'t str, Option<&'t str>, Option<i64>, Option<bool>);

const WRITTEN: &[Written<'_>] = &[
    ("users", Some("users"), None, None),
    ("'users'", Some("users"), None, None),
    ("\"us\\x65rs\"", Some("users"), None, None),
    ("!!str users", Some("users"), None, None),
    ("404", Some("404"), Some(404), None),
    ("007", Some("007"), Some(7), None),
    ("+12", Some("+12"), Some(12), None),
    ("-3", Some("-3"), Some(-3), None),
    ("0x1F", Some("0x1F"), Some(31), None),
    ("0o17", Some("0o17"), Some(15), None),
    ("1.10", Some("1.10"), None, None),
    ("1e3", Some("1e3"), None, None),
    ("1_000", Some("1_000"), Some(1_000), None),
    ("9223372036854775807", Some("9223372036854775807"), Some(i64::MAX), None),
    ("9223372036854775808", Some("9223372036854775808"), None, None),
    ("'404'", Some("404"), None, None),
    ("\"404\"", Some("404"), None, None),
    ("!!str 404", Some("404"), None, None),
    ("! 404", Some("404"), None, None),
    ("!<tag:yaml.org,2002:str> 404", Some("404"), None, None),
    ("!!int 404", Some("404"), Some(404), None),
    ("!!int \"404\"", Some("404"), Some(404), None),
    ("!!int four", None, None, None),
    ("!!bool true", Some("true"), None, Some(true)),
    ("!!str true", Some("true"), None, None),
    ("true", Some("true"), None, Some(true)),
    ("False", Some("False"), None, Some(false)),
    ("'true'", Some("true"), None, None),
    ("yes", Some("yes"), None, None),
    ("''", Some(""), None, None),
    ("!!str", Some(""), None, None),
    ("null", None, None, None),
    ("~", None, None, None),
    ("", None, None, None),
    ("'null'", Some("null"), None, None),
    ("!!str null", Some("null"), None, None),
    ("!!null null", None, None, None),
    ("!!float 1", Some("1"), None, None),
    ("!other 404", None, None, None),
    ("!!other 404", None, None, None),
    ("[404]", None, None, None),
    ("{a: 404}", None, None, None),
];

#[test]
fn a_value_is_the_same_however_it_is_written() {
    for (written, text, number, is) in WRITTEN {
        // `&a 404` is as `404`, and so is an alias to it.
        let (tag, rest) = match written.strip_prefix('!') {
            Some(_) => written.split_once(' ').unwrap_or((written, "")),
            None => ("", *written),
        };
        let ways = [
            format!("{{first: 1, last: {written} }}"),
            format!("last: {written}"),
            format!("last: {written} # 1"),
            format!("last:\n   {written}\n"),
            format!("last: &a {written}"),
            format!("last: &a {tag} {rest}"),
            format!("last: {tag} &a {rest}"),
            format!("{{last: &a {written} }}"),
            format!("first: &a {written}\nlast: *a"),
            format!("first: [&a {written} ]\nlast: *a\n"),
            format!("first: {{b: &b [&a {written} ]}}\nlast: *a"),
            format!("%YAML 1.2\n---\nlast: {written}\n...\n"),
            format!("\u{feff}last: {written}\n"),
            format!("'last': {written}\r\n"),
        ];
        for way in ways {
            let found = value(&way, |source, node| source.text(node)).ok();
            assert_eq!(found.as_deref(), *text, "{way:?}");
            let found = value(&way, |source, node| source.integer(node)).ok();
            assert_eq!(found, *number, "{way:?}");
            let found = value(&way, |source, node| source.boolean(node)).ok();
            assert_eq!(found, *is, "{way:?}");
        }
    }
}

/// One name, as YAML can write it.
const KEYS: [&str; 9] =
    ["7", "'7'", "\"7\"", "!!str 7", "!!int 7", "! 7", "&x 7", "? 7\n", "\"\\x37\""];

#[test]
fn a_name_is_once_in_a_map_however_it_is_written() {
    let twice = |one: &str, other: &str| format!("first: &y 7\n{one}: 1\nmiddle: 2\n{other}: 3\n");
    for one in KEYS {
        for other in KEYS.into_iter().chain(["*y "]) {
            let text = twice(one, other);
            let error = read(&text, |source, file| source.entries(&file, "a map").map(|_| ()));
            let error = error.expect_err(&text).to_string();
            let line = text[..text.rfind(other.trim_end()).unwrap()].lines().count() + 1;
            assert!(error.contains("duplicated key"), "{text}{error}");
            assert!(error.starts_with(&format!("f.yaml:{line}:")), "{text}{error}");
        }
    }
}

#[test]
fn merges_and_aliases_that_mean_nothing_are_refused_with_their_place() {
    let of = |text: &str| {
        let read = read(text, |source, file| source.entries(&file, "a map").map(|_| ()));
        read.unwrap_err().to_string()
    };
    for (text, says) in [
        ("x: &a {b: 1}\n<<: *a", "f.yaml:2:1: the file: << does not merge maps"),
        ("x: &a {b: 1}\n!!merge <<: *a", "<< does not merge maps"),
        ("a: &a {b: *a}", "f.yaml:1:11: an alias must not stand within"),
        ("a: &a [*a]", "f.yaml:1:8: an alias must not stand within"),
        ("&a {*a : 1, b: 2}", "f.yaml:1:5: an alias must not stand within"),
        ("a: *b", "f.yaml:1:4: "),
        ("? [a]\n: 1", "a key is a list, must be a name"),
        ("~: 1", "a key is nothing, must be a name"),
        ("!x a: 1", "a key is \"a\" with the tag !x"),
    ] {
        assert!(of(text).contains(says), "{text}: {}", of(text));
    }
    // In quotes it is a name.
    assert_eq!(value("'<<': 1", |source, node| source.integer(node)), Ok(1));
}

/// The name of a kind of node, and one that holds many of another.
type Bomb = (&'static str, fn(&str) -> String);

#[test]
fn a_few_aliases_cannot_stand_for_millions_of_nodes_nor_nest_deeply() {
    let bombs: [Bomb; 3] = [
        ("list", |of| format!("[{}]", [of; 10].join(","))),
        ("map", |of| {
            let entries: Vec<_> = (0..10).map(|at| format!("k{at}: {of}")).collect();
            format!("{{{}}}", entries.join(","))
        }),
        ("key", |of| format!("{{? {of} : 1, k: [{}]}}", [of; 9].join(","))),
    ];
    for (kind, layer) in bombs {
        let line = |at: usize| format!("a{at}: &a{at} {}\n", layer(&format!("*a{}", at - 1)));
        let text: String =
            std::iter::once("a0: &a0 [x]\n".to_owned()).chain((1..12).map(line)).collect();
        let error = read(&text, |_, _| Ok(())).expect_err(kind);
        assert!(error.to_string().contains("alias expansion"), "{kind}: {error}");
        assert!(error.place.is_some());
    }
    // Anchors that nest in each other, each by a step.
    let deep: String = std::iter::once("a0: &a0 [x]\n".to_owned())
        .chain((1..5_000).map(|at| format!("a{at}: &a{at} [*a{}]\n", at - 1)))
        .collect();
    assert!(read(&deep, |_, _| Ok(())).is_err());
}

proptest! {
    /// A text in quotes is that text, with or without an anchor.
    #[test]
    fn a_text_in_quotes_is_that_text(text in "\\PC{0,40}") {
        let quoted = format!("'{}'", text.replace('\'', "''"));
        for way in [format!("a: {quoted}"), format!("a: &x {quoted}"), format!("b: &x {quoted}\na: *x")] {
            prop_assert_eq!(value(&way, |source, node| source.text(node)), Ok(text.clone()));
        }
    }
}
