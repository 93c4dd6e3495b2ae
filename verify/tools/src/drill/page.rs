//! The named blocks of shell in `docs/operations.md`.

use std::collections::BTreeMap;

/// The page.
pub const PAGE: &str = include_str!("../../../../docs/operations.md");

/// Its blocks that begin with ` ```sh {name}`, by name.
///
/// # Errors
/// If a block of shell has no name, or that of another one.
pub fn blocks(page: &str) -> Result<BTreeMap<&str, String>, String> {
    let (mut blocks, mut open) = (BTreeMap::new(), None);
    for line in page.lines() {
        match (open.take(), line.strip_prefix("```")) {
            (None, Some(info)) => {
                open = Some((info.strip_prefix("sh").map(str::trim), String::new()))
            }
            (None, None) => {}
            (Some((Some(name), text)), Some(_)) => {
                if name.is_empty() || blocks.insert(name, text).is_some() {
                    return Err(format!(
                        "a block of shell needs a name of its own, this one has {name:?}"
                    ));
                }
            }
            (Some((None, _)), Some(_)) => {}
            (Some((name, text)), None) => open = Some((name, text + line + "\n")),
        }
    }
    Ok(blocks)
}

/// Returns the names of the blocks in the section with this anchor, its subsections' included.
pub fn section_blocks<'a>(page: &'a str, wanted: &str) -> Vec<&'a str> {
    let (mut is_code, mut depth, mut names) = (false, None, vec![]);
    for line in page.lines() {
        if let Some(info) = line.strip_prefix("```") {
            if let (false, Some(_), Some(name)) = (is_code, depth, info.strip_prefix("sh ")) {
                names.push(name.trim());
            }
            is_code = !is_code;
        } else if line.starts_with('#') && !is_code {
            let title = line.trim_start_matches('#');
            let level = line.len() - title.len();
            if depth.is_none_or(|depth| level <= depth) {
                depth = (anchor(title.trim()) == wanted).then_some(level);
            }
        }
    }
    names
}

/// The anchor of a heading, as GitHub and GitLab make it.
fn anchor(heading: &str) -> String {
    let kept = |char: &char| char.is_alphanumeric() || [' ', '-', '_'].contains(char);
    let heading = heading.to_lowercase();
    let kept: String = heading.chars().filter(kept).collect();
    kept.replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use weirgate_testkit::template::{properties, template};

    const KEY: &str = "arn:aws:kms:us-east-1:000000000000:key/1";

    #[test]
    fn every_block_of_the_page_has_a_name() {
        assert!(blocks(PAGE).unwrap().len() > 15);
        assert!(blocks("```sh\n```\n").is_err() && blocks("```sh a\n```\n```sh a\n```\n").is_err());
    }

    #[test]
    fn a_section_has_its_own_blocks_and_those_of_its_subsections() {
        let page = "# A b\n```sh one\n# x\n```\n## C\n```sh two\n```\n# D\n```sh three\n```\n";
        assert_eq!(section_blocks(page, "a-b"), ["one", "two"]);
        assert_eq!(section_blocks(page, "c"), ["two"]);
        assert_eq!(section_blocks(page, "d"), ["three"]);
        assert!(section_blocks(page, "e").is_empty());
    }

    /// Returns the arguments of a block's calls of `aws` and `sam`, word by word, without running
    /// them.
    fn asked(block: &str, variables: &[(&str, &str)]) -> Vec<Vec<String>> {
        let shadowed = r#"ask() { { printf '%s\0' "$@"; printf '\036'; } >&2; }; aws() { ask aws "$@"; }; sam() { ask sam "$@"; }"#;
        let output = std::process::Command::new("bash")
            .args([
                "-euo",
                "pipefail",
                "-c",
                &format!("{shadowed}\n{}", blocks(PAGE).unwrap()[block]),
            ])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{said}");
        let commands = said.split_terminator('\u{1e}');
        commands
            .map(|words| words.split_terminator('\0').map(str::to_owned).collect())
            .collect()
    }

    /// The options of a command, and what follows them.
    fn options(words: &[String]) -> BTreeMap<&str, Value> {
        let mut options = BTreeMap::new();
        let mut words = words.iter().peekable();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--") else {
                continue;
            };
            let value = words.next_if(|word| !word.starts_with("--"));
            let value = value.map_or(json!(true), |text| {
                serde_json::from_str(text).unwrap_or(json!(text))
            });
            assert!(options.insert(name, value).is_none(), "{name} twice");
        }
        options
    }

    /// A value of the template where every parameter has its default.
    fn resolved(value: &Value) -> Value {
        match value {
            Value::Object(fields) => match fields.iter().next() {
                Some((function, of)) if function == "Ref" => {
                    template()["Parameters"][of.as_str().unwrap()]["Default"].take()
                }
                Some((function, of)) if function == "Fn::GetAtt" => match of.as_str() {
                    Some("Table.StreamArn") => json!("arn:aws:dynamodb:of-it"),
                    Some("FailureBucket.Arn") => json!("arn:aws:s3:::the-bucket"),
                    other => panic!("{other:?} of the template"),
                },
                _ => fields
                    .iter()
                    .map(|(name, value)| (name.clone(), resolved(value)))
                    .collect(),
            },
            Value::Array(values) => values.iter().map(resolved).collect(),
            plain => plain.clone(),
        }
    }

    /// `BatchSize` is `batch-size`.
    fn option(property: &str) -> String {
        if property == "Stream" {
            return "event-source-arn".to_owned();
        }
        let dashed = property.chars().flat_map(|char| {
            [
                char.is_uppercase().then_some('-'),
                Some(char.to_ascii_lowercase()),
            ]
        });
        dashed.flatten().skip(1).collect()
    }

    #[test]
    fn the_manually_created_mapping_is_the_one_of_the_template() {
        let of = [
            ("aggregator", "weirgate-aggregator"),
            ("stream", "arn:aws:dynamodb:of-it"),
            ("failures", "the-bucket"),
        ];
        let asked = asked("again", &of);
        assert_eq!(
            (asked.len(), &asked[0][..3]),
            (
                1,
                &["aws", "lambda", "create-event-source-mapping"].map(str::to_owned)[..]
            )
        );
        let mut by_hand = options(&asked[0]);
        assert_eq!(
            by_hand.remove("function-name"),
            Some(json!("weirgate-aggregator"))
        );
        by_hand.retain(|name, _| !["query", "output"].contains(name));

        let mapping = properties("Aggregator")["Events"]["Stream"]["Properties"].take();
        let in_stack = mapping.as_object().unwrap().iter().map(|(name, value)| {
            // The words of a list stand one after the other.
            let value = if name == "FunctionResponseTypes" {
                &value[0]
            } else {
                value
            };
            (option(name), resolved(value))
        });
        let in_stack: BTreeMap<_, _> = in_stack.collect();
        let by_hand: BTreeMap<_, _> = by_hand
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        assert_eq!(by_hand, in_stack);
    }

    #[test]
    fn a_stack_without_its_stream_is_the_template_without_what_is_about_it() {
        let block = &blocks(PAGE).unwrap()["hand-back"];
        let (only, _) = block.split_once(" > ").unwrap();
        let output = std::process::Command::new("bash")
            .args(["-euc", only])
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .output()
            .unwrap();
        let without = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && !without.contains("AggregatorStream"));
        let resources = |text: &str| {
            let names = text.lines().filter(|line| {
                line.starts_with("  ") && !line.starts_with("   ") && line.ends_with(':')
            });
            names.map(str::to_owned).collect::<Vec<_>>()
        };
        let whole = include_str!("../../../../template.yaml");
        let gone = [
            "  DiscardedRecordsAlarm:",
            "  DroppedRecordsAlarm:",
            "  StreamUnreadAlarm:",
        ];
        let expected: Vec<_> = resources(whole)
            .into_iter()
            .filter(|name| !gone.contains(&name.as_str()))
            .collect();
        assert_eq!(resources(&without), expected);
        let events = |text: &str| text.lines().filter(|line| line.trim() == "Events:").count();
        assert_eq!(
            (events(whole), events(&without)),
            (3, 2),
            "the reconciler keeps its schedule, and the archiver its mapping"
        );
        let of_release = only.replace("template.yaml", "\"$template\"");
        let block = &blocks(PAGE).unwrap()["hand-back-release"];
        assert!(block.contains(&of_release), "a release's is made otherwise");
    }

    #[test]
    fn a_restored_table_has_the_key_that_the_old_one_had() {
        for block in ["restore", "restore-backup"] {
            let with = |key| {
                let of = [
                    ("table", "weirgate"),
                    ("backup", "of-the-table"),
                    ("key", key),
                ];
                options(&asked(block, &of)[0]).remove("sse-specification-override")
            };
            assert_eq!(
                with(KEY),
                Some(json!(format!(
                    "Enabled=true,SSEType=KMS,KMSMasterKeyId={KEY}"
                ))),
                "{block}"
            );
            assert_eq!(with(""), None, "{block}");
        }
    }

    /// What says of the table that it has the key already: a deployment that gave it once more
    /// would be refused.
    #[test]
    fn a_restored_table_is_imported_with_its_key() {
        let file = include_str!("../../../../scripts/restored-table.yaml").trim_end();
        let body = |key| {
            options(&asked("import", &[("key", key)])[0])["template-body"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(body(""), file);
        assert_eq!(
            properties("Table")["SSESpecification"]["Fn::If"][1],
            json!({"SSEEnabled": true, "SSEType": "KMS", "KMSMasterKeyId": {"Ref": "KmsKeyArn"}})
        );
        let added = format!(
            "\n      SSESpecification: {{SSEEnabled: true, SSEType: KMS, KMSMasterKeyId: '{KEY}'}}"
        );
        assert_eq!(body(KEY), format!("{file}{added}"));
        assert!(
            file.lines()
                .any(|line| line == "      GlobalSecondaryIndexes:"),
            "the table's properties are the last"
        );
    }

    #[test]
    fn an_imported_table_is_adopted_by_what_is_built_or_packaged_before() {
        let commands = |block, words| -> Vec<_> {
            let asked = asked(block, &[("env", "default")]);
            asked.iter().map(|of| of[..words].join(" ")).collect()
        };
        assert_eq!(commands("adopt", 2), ["sam build", "sam deploy"]);
        let released = ["package", "deploy"].map(|verb| format!("aws cloudformation {verb}"));
        assert_eq!(commands("adopt-release", 3), released);
    }
}
