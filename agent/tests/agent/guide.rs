//! The guide, the layer and the service files against the binary.

use std::collections::BTreeMap;
use std::path::Path;

use crate::fixtures::command;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).expect(path)
}

#[test]
fn the_guide_has_every_option_with_its_variable_and_no_others() {
    let help =
        String::from_utf8(command(&["--help"]).env_remove("AWS_REGION").output().unwrap().stdout)
            .unwrap();
    let mut options = BTreeMap::new();
    let mut option = String::new();
    for line in help.lines() {
        if let Some(named) = line.trim_start().strip_prefix("--") {
            option = format!("--{}", named.split(' ').next().unwrap());
        }
        // A long line goes on in the next one, perhaps between the two words.
        for word in line.split(' ') {
            // A value that may be secret is not shown.
            if let Some((variable, _)) = word.split_once(['=', ']'])
                && (variable.starts_with("WEIRGATE_") || variable.starts_with("AWS_"))
            {
                options.insert(option.clone(), variable.to_owned());
            }
        }
    }
    let guide = read("docs/guide/agent.md");
    // An item names the variable only if it is not made of the option.
    let item = |line: &str| {
        let (option, rest) = line.strip_prefix("- `--")?.split_once('`')?;
        let named = rest.strip_prefix(" (`").and_then(|rest| rest.split_once('`'));
        let variable = match named {
            Some((variable, _)) => variable.to_owned(),
            None => format!("WEIRGATE_AGENT_{}", option.to_uppercase().replace('-', "_")),
        };
        Some((format!("--{option}"), variable))
    };
    let described: BTreeMap<_, _> = guide.lines().filter_map(item).collect();
    assert_eq!(described, options);
    assert!(options.len() > 10, "{options:?}");
}

#[test]
fn each_layer_of_the_template_has_its_rule_in_the_makefile() {
    let (template, makefile) = (read("agent/layer/template.yaml"), read("agent/layer/Makefile"));
    let (_, resources) = template.split_once("\nResources:\n").unwrap();
    let (resources, _) = resources.split_once("\nOutputs:\n").unwrap();
    let mut layers = 0;
    for line in resources.lines() {
        let Some(name) = line.strip_prefix("  ").and_then(|name| name.strip_suffix(':')) else {
            continue;
        };
        if name.starts_with(' ') {
            continue;
        }
        assert!(makefile.contains(&format!("build-{name}: architecture = ")), "{name}");
        layers += 1;
    }
    assert_eq!(layers, 2);
    assert!(
        makefile.contains("\"$(ARTIFACTS_DIR)/extensions/weirgate-agent\""),
        "where Lambda looks for it"
    );
    assert!(read("agent/layer/samconfig.toml").contains("build_in_source = true"));
}

#[test]
fn the_service_files_name_variables_that_there_are() {
    let source = [read("agent/src/options.rs"), read("agent/src/main.rs")].concat();
    for path in [
        "agent/deploy/weirgate-agent.service",
        "agent/deploy/compose.local.yaml",
        "agent/deploy/compose.yaml",
        "agent/deploy/ecs-task.json",
        "agent/deploy/kubernetes/daemonset.yaml",
        "agent/deploy/kubernetes/sidecar.yaml",
        "docs/guide/agent.md",
        "docs/guide/install.md",
        "docs/guide/lambda-extension.md",
    ] {
        let text = read(path);
        let is_of_name = |c: char| c.is_ascii_uppercase() || c == '_';
        let words = text.split(|c: char| !is_of_name(c));
        // The address, which the clients read.
        let of_clients = ["WEIRGATE_AGENT_URL"];
        for name in words.filter(|word| word.starts_with("WEIRGATE_") && !of_clients.contains(word))
        {
            assert!(source.contains(&format!("\"{name}\"")), "{path}: {name}");
        }
    }
}
