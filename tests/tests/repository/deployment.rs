//! What a deployment needs of an account, what it leaves behind, and what its environments are.

use serde_json::{Value, json};
use weirgate_testkit::policy::Policy;
use weirgate_testkit::template::{default_resources, read, resources, template};

/// A new account has a concurrency quota of 10, and Lambda refuses whatever would leave less than
/// that unreserved.
#[test]
fn the_defaults_reserve_no_concurrency_so_a_new_account_can_deploy_them() {
    for (name, resource) in resources() {
        let properties = &resource["Properties"];
        assert!(properties["ProvisionedConcurrencyConfig"].is_null(), "{name}");
        let reserved = &properties["ReservedConcurrentExecutions"];
        assert!(reserved.is_null(), "{name} reserves {reserved}");
    }
}

/// The first of them fits a stack's name into the 64 characters of a function or schedule.
#[test]
fn names_that_are_made_of_the_stacks_leave_it_53_characters() {
    let names = |value: &Value| {
        value["Fn::Sub"].as_str().map(|name| name.replace("${AWS::StackName}", "").len())
    };
    let resources = resources();
    let functions = ["Aggregator", "Reconciler"].map(|name| &resources[name]["Properties"]);
    let longest = functions.iter().filter_map(|function| names(&function["FunctionName"])).max();
    let schedule = names(&functions[1]["Events"]["Schedule"]["Properties"]["Name"]);
    assert_eq!(longest.max(schedule), Some(64 - 53));
}

/// The block of the page is what `make e2e` runs.
#[test]
fn the_readme_deploys_a_release_by_the_commands_of_the_page() {
    let page = include_str!("../../../docs/deployment.md");
    let block = page.split("```sh deploy-release\n").nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    let block = block.expect("the page has the block");
    assert_eq!(block.matches("\naws ").count() + 1, 3, "three commands");
    let readme = include_str!("../../../README.md");
    assert!(readme.contains(&format!("```sh\n{block}```")));
    // Copied as they stand, they would send alarms to an address of another reader, and fail on the
    // bucket.
    for page in [page, readme] {
        for placeholder in ["my-releases", "on-call@example.com"] {
            assert!(block.contains(placeholder));
            let words: Vec<_> = page.split_whitespace().collect();
            let replace = format!("Replace `{placeholder}` by");
            assert!(words.join(" ").contains(&replace), "{replace}");
        }
    }
}

/// Words as `wc -w` counts them.
#[test]
fn the_readme_has_600_words_at_most_and_its_first_code_within_15_lines() {
    let readme = include_str!("../../../README.md");
    let words = readme.split_whitespace().count();
    assert!(words <= 600, "{words} words");
    let code = readme.lines().position(|line| line.starts_with("```"));
    assert!(code.is_some_and(|line| line < 15), "{code:?}");
}

/// A first deployment that fails rolls back. What it keeps then must not be in the way of the next
/// one.
#[test]
fn what_stays_behind_has_no_name_that_a_second_deployment_wants() {
    let kept =
        resources().into_iter().filter(|(_, resource)| !resource["DeletionPolicy"].is_null());
    let kept: Vec<_> =
        kept.map(|(name, resource)| (name, resource["DeletionPolicy"].clone(), resource)).collect();
    let policies: Vec<_> =
        kept.iter().map(|(name, policy, _)| (name.as_str(), policy.as_str().unwrap())).collect();
    let except = "RetainExceptOnCreate";
    assert_eq!(
        policies,
        [("FailureBucket", except), ("FailureBucketPolicy", except), ("Table", "Retain")]
    );
    for (name, _, resource) in kept {
        let properties = resource["Properties"].as_object().unwrap();
        assert!(
            !properties.contains_key("TableName") && !properties.contains_key("BucketName"),
            "{name}"
        );
    }
}

#[test]
fn the_stack_policy_protects_what_would_be_lost() {
    let policy: Value = serde_json::from_str(include_str!("../../../stack-policy.json")).unwrap();
    let kept: Vec<_> =
        ["Table", "FailureBucket"].map(|name| format!("LogicalResourceId/{name}")).into();
    assert_eq!(
        policy,
        json!({"Statement": [
            {"Effect": "Allow", "Principal": "*", "Action": "Update:*", "Resource": "*"},
            {
                "Effect": "Deny",
                "Principal": "*",
                "Action": ["Update:Replace", "Update:Delete"],
                "Resource": kept,
            },
        ]})
    );
    for name in ["Table", "FailureBucket"] {
        assert!(resources()[name]["DeletionPolicy"].is_string(), "{name}");
    }
}

/// The console shows parameters by these groups, and one that is in none at the end.
#[test]
fn every_parameter_is_in_one_group() {
    let template = template();
    let groups = &template["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"];
    let of = |group: &Value| group["Parameters"].as_array().unwrap().clone();
    let mut grouped: Vec<_> = groups.as_array().unwrap().iter().flat_map(of).collect();
    grouped.sort_by_key(ToString::to_string);
    let mut all: Vec<_> =
        template["Parameters"].as_object().unwrap().keys().map(|name| json!(name)).collect();
    all.sort_by_key(ToString::to_string);
    assert_eq!(grouped, all);
}

/// None of them costs, deletes or refuses anything that a first deployment would not have.
#[test]
fn what_is_optional_is_off_by_default() {
    let made = default_resources();
    assert!(!made.iter().any(|name| name == "AlarmTopic"));
    for always in ["Table", "Aggregator", "Reconciler", "StreamUnreadAlarm"] {
        assert!(made.iter().any(|name| name == always), "{always}");
    }
    let table = &resources()["Table"]["Properties"];
    let nothing = json!({"Ref": "AWS::NoValue"});
    assert_eq!(table["WarmThroughput"]["Fn::If"][2], nothing);
    assert_eq!(table["OnDemandThroughput"]["Fn::If"][2], nothing);
    let template = template();
    for (name, default) in [
        ("WarmThroughput", json!("0")),
        ("MaxWriteRequestUnits", json!(0)),
        ("MaxHourlyWriteUnits", json!(0)),
        ("CallerPrincipals", json!("")),
        ("SsmPrefix", json!("")),
    ] {
        assert_eq!(template["Parameters"][name]["Default"], default, "{name}");
    }
}

/// Below `SsmPrefix` other stacks find what they need by the names of the outputs.
#[test]
fn the_outputs_about_table_and_policies_are_parameters_too() {
    let outputs = template()["Outputs"].take();
    let mut expected: Vec<_> = outputs
        .as_object()
        .unwrap()
        .iter()
        .filter(|(name, _)| name.starts_with("Table") || name.contains("Policy"))
        .map(|(name, output)| {
            let path = format!("${{SsmPrefix}}/{name}");
            let value = &output["Value"];
            json!({"Name": {"Fn::Sub": path}, "Type": "String", "Value": value}).to_string()
        })
        .collect();
    let parameters =
        resources().into_iter().filter(|(_, resource)| resource["Type"] == "AWS::SSM::Parameter");
    let mut found: Vec<_> = parameters
        .map(|(name, resource)| {
            assert_eq!(resource["Condition"], "HasSsm", "{name}");
            resource["Properties"].to_string()
        })
        .collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

/// Keys leave the table's encryption, so only a choice of the deployer lists them, on the table and
/// all its indexes.
#[test]
fn throttled_keys_are_listed_everywhere_or_nowhere() {
    assert_eq!(template()["Parameters"]["ThrottledKeys"]["Default"], "false");
    let table = &resources()["Table"]["Properties"];
    let indexes = table["GlobalSecondaryIndexes"].as_array().unwrap();
    let enabled = json!({"Enabled": true, "Mode": "THROTTLED_KEYS"});
    let nothing = json!({"Ref": "AWS::NoValue"});
    for of in indexes.iter().chain([table]) {
        let insights = &of["ContributorInsightsSpecification"]["Fn::If"];
        assert_eq!(*insights, json!(["ListsThrottledKeys", enabled, nothing]));
    }
}

/// The policies of the page: what callers need of an endpoint, and what makes a global table.
#[test]
fn the_platform_page_has_policies_of_the_calls_that_are_made() {
    let page = include_str!("../../../docs/platform.md");
    let blocks = page.split("```json\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().expect("a block ends"));
    let policies: Vec<Value> =
        blocks.map(|block| serde_json::from_str(block).expect("a policy is JSON")).collect();
    let [endpoint, replicas] = &policies[..] else { panic!("{policies:?}") };
    let allowed = Policy::of("AcquirePolicy", false).actions();
    let actions: Vec<_> = allowed.iter().map(|(_, action)| json!(action)).collect();
    assert_eq!(endpoint["Statement"][0]["Action"], json!(actions));
    let statement = &replicas["Statement"][0];
    assert_eq!(statement["Effect"], "Deny");
    let denied = statement["Action"].as_array().expect("actions");
    assert!(denied.contains(&json!("dynamodb:CreateTableReplica")));
    assert!(!denied.contains(&json!("dynamodb:UpdateTable")), "updates stay possible");
}

/// What follows an option in a command.
fn option<'a>(command: &'a str, name: &str) -> &'a str {
    let mut words = command.split_whitespace().skip_while(|word| *word != name);
    let value = words.nth(1);
    value.unwrap_or_else(|| panic!("{command} lacks {name}"))
}

/// A checkout brings what is packaged, and what is packaged is deployed.
#[test]
fn the_platform_page_has_a_workflow_that_makes_what_it_deploys() {
    let page = include_str!("../../../docs/platform.md");
    let block = page.split("```yaml\n").nth(1);
    let block = block.and_then(|rest| rest.split("```").next());
    let workflow = read(block.expect("the page has a workflow"));
    let job = &workflow["jobs"]["deploy"];
    assert!(!workflow["on"].is_null() && !job["runs-on"].is_null());
    let steps: Vec<_> = job["steps"].as_array().expect("steps").iter().collect();
    let [checkout, credentials, package, deploy] = steps[..] else { panic!("{steps:?}") };
    let action =
        |step: &Value| step["uses"].as_str().map(|uses| uses.split('@').next().unwrap().to_owned());
    assert_eq!(action(checkout).as_deref(), Some("actions/checkout"));
    let of_aws = "aws-actions/configure-aws-credentials";
    assert_eq!(action(credentials).as_deref(), Some(of_aws));
    let [package, deploy] = [package, deploy].map(|step| step["run"].as_str().expect("a command"));
    let template = option(package, "--template-file");
    let file = template.strip_prefix("weirgate/").expect("of the folder");
    let releases = include_str!("../../../docs/releases.md");
    assert!(releases.contains(&format!("`{file}`")), "{file}");
    assert!(page.contains("zips in the folder `weirgate`"));
    let packaged = option(package, "--output-template-file");
    assert_eq!(option(deploy, "--template-file"), packaged);
    let bucket = option(package, "--s3-bucket");
    assert_eq!(option(deploy, "--s3-bucket"), bucket);
    let roles = page
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains("deploy-roles.yaml"));
    let roles = roles.expect("the page deploys the roles");
    assert!(roles.contains(&format!("CodeBucket={bucket} ")), "{roles}");
}

/// What a program enables to find credentials where the command line does.
#[test]
fn the_platform_page_names_the_features_of_the_command_line() {
    let page = include_str!("../../../docs/platform.md");
    let named = page.lines().find(|line| line.starts_with("aws-config = "));
    let manifest = include_str!("../../../cli/Cargo.toml");
    let enabled = manifest.lines().find(|line| line.starts_with("aws-config = "));
    let features = |line: Option<&str>| {
        let line = line.expect("a line of aws-config");
        line.split("features = [").nth(1).expect("features").to_owned()
    };
    assert_eq!(features(named), features(enabled));
}
