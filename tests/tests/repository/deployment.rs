//! What a deployment needs of an account, what it leaves behind, and what its environments are.

use serde_json::{Value, json};
use weirgate_testkit::template::{default_resources, resources, template};

/// A new account has a concurrency quota of 10, and Lambda refuses whatever would leave less than
/// that unreserved.
#[test]
fn the_defaults_reserve_no_concurrency_so_a_new_account_can_deploy_them() {
    for (name, resource) in resources() {
        let properties = &resource["Properties"];
        assert!(
            properties["ProvisionedConcurrencyConfig"].is_null(),
            "{name}"
        );
        let reserved = &properties["ReservedConcurrentExecutions"];
        assert!(reserved.is_null(), "{name} reserves {reserved}");
    }
}

/// The first of them fits a stack's name into the 64 characters of a function or schedule.
#[test]
fn names_that_are_made_of_the_stacks_leave_it_53_characters() {
    let names = |value: &Value| {
        value["Fn::Sub"]
            .as_str()
            .map(|name| name.replace("${AWS::StackName}", "").len())
    };
    let resources = resources();
    let functions = ["Aggregator", "Reconciler"].map(|name| &resources[name]["Properties"]);
    let longest = functions
        .iter()
        .filter_map(|function| names(&function["FunctionName"]))
        .max();
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

/// A first deployment that fails rolls back. What it keeps then must not be in the way of the next
/// one.
#[test]
fn what_stays_behind_has_no_name_that_a_second_deployment_wants() {
    let kept = resources()
        .into_iter()
        .filter(|(_, resource)| !resource["DeletionPolicy"].is_null());
    let kept: Vec<_> = kept
        .map(|(name, resource)| (name, resource["DeletionPolicy"].clone(), resource))
        .collect();
    let policies: Vec<_> = kept
        .iter()
        .map(|(name, policy, _)| (name.as_str(), policy.as_str().unwrap()))
        .collect();
    let except = "RetainExceptOnCreate";
    assert_eq!(
        policies,
        [
            ("FailureBucket", except),
            ("FailureBucketPolicy", except),
            ("Table", "Retain")
        ]
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
    let kept: Vec<_> = ["Table", "FailureBucket"]
        .map(|name| format!("LogicalResourceId/{name}"))
        .into();
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
    let mut all: Vec<_> = template["Parameters"]
        .as_object()
        .unwrap()
        .keys()
        .map(|name| json!(name))
        .collect();
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
    for name in ["WarmThroughput", "MaxWriteRequestUnits"] {
        assert_eq!(template["Parameters"][name]["Default"], 0, "{name}");
    }
}
