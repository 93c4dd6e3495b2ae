//! The three versions of a release, of the crates, of the table's schema and of the template, are
//! the same wherever they stand. `docs/releases.md` says what each of them promises.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use weirgate_shared::SCHEMA_VERSION;
use weirgate_testkit::template::template;

const CRATE: &str = env!("CARGO_PKG_VERSION");
const CHANGES: &str = include_str!("../../../CHANGELOG.md");
const PAGE: &str = "docs/template.md";

/// The page before the first section. Its version is `Version {}`.
const HEAD: &str = "# Template

The parameters and outputs of `template.yaml`: what a deployment sets, and what other templates and callers read.
`make template-page` writes this page. A test compares it with the template, and a row that is gone or has another
default or other values requires a new version of the template ([releases](releases.md#versions)).
";

fn root(name: &str) -> String {
    format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn template_version() -> String {
    let version = template()["Outputs"]["TemplateVersion"]["Value"].take();
    version.as_str().expect("the template has one").to_owned()
}

#[test]
fn the_newest_entry_of_the_changelog_names_the_three_versions() {
    let newest = CHANGES.split("\n## ").nth(1).expect("it has an entry");
    assert!(
        newest.starts_with(&format!("[{CRATE}]")),
        "CHANGELOG.md: the newest entry must be of {CRATE}"
    );
    let template = template_version();
    let line = format!("\nTable schema {SCHEMA_VERSION}, template {template}.\n");
    assert!(newest.contains(&line), "CHANGELOG.md: {CRATE} lacks: {line}");
}

#[test]
fn the_page_on_releases_has_the_versions_of_now() {
    let row = format!("| now | {CRATE} | {SCHEMA_VERSION} | {} |", template_version());
    assert!(read("docs/releases.md").contains(&row), "docs/releases.md lacks: {row}");
}

#[test]
fn the_packages_of_the_clients_and_the_range_of_their_middleware_have_the_version_of_the_crates() {
    let project = format!("version = \"{CRATE}\"");
    let module = format!("__version__ = \"{CRATE}\"");
    let package = format!("  \"version\": \"{CRATE}\",");
    let lines: [(&str, &str); 9] = [
        ("clients/python/pyproject.toml", &project),
        ("clients/python/src/weirgate/__init__.py", &module),
        ("clients/asgi/pyproject.toml", &project),
        ("clients/asgi/pyproject.toml", &format!("dependencies = [\"weirgate~={CRATE}\"]")),
        ("clients/asgi/src/weirgate_asgi/__init__.py", &module),
        ("clients/typescript/package.json", &package),
        ("clients/express/package.json", &package),
        ("clients/express/package.json", &format!("    \"weirgate\": \"~{CRATE}\"")),
        ("tests/data/api.txt", &format!("Version {CRATE}")),
    ];
    for (file, line) in lines {
        assert!(read(file).lines().any(|each| each == line), "{file} must have {line}");
    }
}

/// A row of the page: what is compared, and what it says.
type Rows = BTreeMap<String, String>;

/// A value of the template as the page shows it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) if text.is_empty() => "empty".to_owned(),
        Value::String(text) => text.trim().to_owned(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

fn parameters() -> Rows {
    let mut template = template();
    let Value::Object(parameters) = template["Parameters"].take() else {
        panic!("Parameters must be a mapping");
    };
    let row = |(name, parameter): (&String, &Value)| {
        let range = ["MinValue", "MaxValue"].map(|bound| text(&parameter[bound]));
        let values = match (&parameter["AllowedValues"], &parameter["ConstraintDescription"]) {
            (Value::Null, Value::Null) if range.iter().all(String::is_empty) => {
                text(&parameter["Type"])
            }
            (Value::Null, Value::Null) if range[1].is_empty() => format!("{} or more", range[0]),
            (Value::Null, Value::Null) => range.join(" to "),
            (Value::Null, constraint) => text(constraint),
            (allowed, _) => text(allowed),
        };
        let key = format!("| `{name}` | {} | {values} |", text(&parameter["Default"]));
        (key, text(&parameter["Description"]))
    };
    parameters.iter().map(row).collect()
}

fn outputs() -> Rows {
    let mut template = template();
    let Value::Object(outputs) = template["Outputs"].take() else {
        panic!("Outputs must be a mapping");
    };
    let row =
        |(name, output): (&String, &Value)| (format!("| `{name}` |"), text(&output["Description"]));
    outputs.iter().map(row).collect()
}

fn page() -> String {
    let rows = |rows: Rows| {
        let rows = rows.into_iter().map(|(key, text)| format!("{key} {text} |\n"));
        rows.collect::<String>()
    };
    format!(
        "{HEAD}\nVersion {}\n\n## Parameters\n\n| parameter | default | values | |\n|---|---|---|---|\n{}\n\
         ## Outputs\n\n| output | |\n|---|---|\n{}",
        template_version(),
        rows(parameters()),
        rows(outputs()),
    )
}

/// What a deployment can rely on: rows without their last column, which only explains.
fn promised(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | "))
        .map(|(promised, _)| promised)
        .collect()
}

#[test]
fn the_page_of_the_template_has_its_parameters_and_outputs() {
    let (page, written) = (page(), read(PAGE));
    if page == written {
        return;
    }
    let version = written.lines().find_map(|line| line.strip_prefix("Version "));
    let (now, before) = (promised(&page), promised(&written));
    let gone: Vec<_> = before.difference(&now).collect();
    assert!(
        gone.is_empty() || version != Some(&template_version()),
        "template.yaml: these are gone or changed, so raise TemplateVersion first: {gone:#?}"
    );
    assert!(
        std::env::var_os("WRITTEN").is_some(),
        "{PAGE} is not of template.yaml, run `make template-page`"
    );
    std::fs::write(root(PAGE), page).expect("it can be written");
}
