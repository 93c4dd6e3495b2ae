//! What the environment sets.

use weirgate_testkit::Temporary;
use weirgate_testkit::server::AWS_VARIABLES;

use crate::fixtures::{Table, asked, refusal, weirgate, weirgate_with};

#[tokio::test]
async fn an_empty_variable_is_one_that_is_not_set() {
    let table = Table::new().await;
    let help = weirgate("--help-global").stdout;
    let named = help.split("[env:").skip(1);
    let mut names: Vec<_> =
        named.filter_map(|rest| rest.split_once(']')).map(|(name, _)| name.trim()).collect();
    assert!(names.contains(&"WEIRGATE_TABLE") && names.len() >= 6, "{help}");
    names.extend(AWS_VARIABLES);
    names.extend(["NO_COLOR", "USER", "HOME"]);
    let all: Vec<_> = names.iter().map(|name| (*name, "")).collect();
    let credentials = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    // All of them, and each alone; the endpoint and the region are in variables that are not empty.
    let none = ("NONE", "");
    for empty in all.iter().copied().chain([none]) {
        let is_all = empty == none;
        let mut variables = if is_all { all.clone() } else { vec![empty] };
        variables.extend(credentials);
        let mut options = vec![];
        match empty.0 {
            _ if is_all => {
                options.extend(["--endpoint-url", &table.endpoint, "--region", "us-east-1"])
            }
            "AWS_ENDPOINT_URL_DYNAMODB" => variables.push(("AWS_ENDPOINT_URL", &table.endpoint)),
            _ => variables.push(("AWS_ENDPOINT_URL_DYNAMODB", &table.endpoint)),
        }
        match empty.0 {
            _ if is_all => {}
            "AWS_REGION" => variables.push(("AWS_DEFAULT_REGION", "us-east-1")),
            _ => variables.push(("AWS_REGION", "us-east-1")),
        }
        match empty.0 {
            "WEIRGATE_TABLE" => options.extend(["--table", "weirgate"]),
            _ if is_all => options.extend(["--table", "weirgate"]),
            _ => variables.push(("WEIRGATE_TABLE", "weirgate")),
        }
        let run =
            weirgate_with(&variables, [&options[..], &["limits", "list", "--resources"]].concat());
        assert_eq!(run.code, Some(0), "{empty:?}: {run:?}");
    }
    let unset = weirgate("limits list --resources");
    let empty = weirgate_with(&[("WEIRGATE_TABLE", "")], "limits list --resources");
    assert_eq!((empty.code, empty.stderr), (unset.code, unset.stderr));
}

/// No start of the command panics, whatever the endpoint of the environment is.
#[test]
fn an_endpoint_that_is_no_url_is_named() {
    let set = [
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    for name in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB"] {
        for wrong in [" ", "nonsense", "127.0.0.1:8000", "http://", "http://a b"] {
            let variables = [&set[..], &[(name, wrong)]].concat();
            let run = weirgate_with(&variables, "--table weirgate limits list --resources");
            assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
            assert!(
                matches!(run.code, Some(1 | 2)) && run.stderr.contains("must be http"),
                "{run:?}"
            );
        }
    }
}

/// A profile is an argument, or a variable: keys in the environment are before the variable alone.
#[test]
fn the_keys_of_a_profile_that_is_an_argument_sign() {
    let credentials = "[prod]\naws_access_key_id = of-profile\naws_secret_access_key = secret\n";
    let credentials = Temporary::file("aws-credentials", credentials);
    let (endpoint, heads) = asked(&refusal("AccessDeniedException", ""));
    let files = [
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.path()),
        ("AWS_CONFIG_FILE", "/nonexistent"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_DYNAMODB", &endpoint),
    ];
    let keys = [
        ("AWS_ACCESS_KEY_ID", "of-environment"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "token"),
    ];
    let profile = [("AWS_PROFILE", "prod")];
    for (variables, option, signs) in [
        (keys.to_vec(), "--profile prod", "of-profile"),
        ([&keys[..], &profile].concat(), "--profile prod", "of-profile"),
        (keys[..1].to_vec(), "--profile prod", "of-profile"),
        (vec![], "--profile prod", "of-profile"),
        ([&keys[..], &profile].concat(), "", "of-environment"),
        (keys.to_vec(), "", "of-environment"),
        (profile.to_vec(), "", "of-profile"),
    ] {
        for command in ["limits list --resources", "stop --system --yes", "doctor"] {
            let all = [&files[..], &variables].concat();
            let run = weirgate_with(&all, format!("{option} --table limits {command}").as_str());
            let heads: Vec<_> = heads.try_iter().collect();
            assert!(!heads.is_empty(), "{option} {command}: {run:?}");
            let signed = format!("Credential={signs}/");
            let is_expected = heads.iter().all(|head| head.contains(&signed));
            assert!(is_expected, "{variables:?} {option} {command}: {heads:?}");
        }
    }
}

/// What a new user lacks. Nothing can be sent, so the table of the test gets no request.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_for_a_request_is_one_sentence_with_its_remedy() {
    let config =
        Temporary::file("aws-config", "[profile dev]\nregion = eu-west-1\n[profile ops]\n");
    let files = [("AWS_CONFIG_FILE", config.path()), ("AWS_EC2_METADATA_DISABLED", "true")];
    let keys = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];
    let region = [("AWS_REGION", "eu-west-1")];
    let no_region = "error: no region is set: set AWS_REGION, or the region of the profile; \
                     or give --region or --profile\n";
    let no_profile = "error: no profile is named \"prod\" in the files of the AWS configuration: \
                      there are \"dev\", \"ops\"; correct the name, or add it by 'aws configure \
                      --profile prod'; or give --region or --profile\n";
    for (variables, options, expected) in [
        (&keys[..], "", no_region),
        (&[], "", no_region),
        (&[], "--profile ops", no_region),
        (&region, "--profile prod", no_profile),
        (&keys, "--profile prod", no_profile),
        (&[("AWS_PROFILE", "prod")], "", no_profile),
        (&region, "", "error: no credentials: set AWS_ACCESS_KEY_ID and "),
        (&[], "--profile dev", "error: no credentials: set AWS_ACCESS_KEY_ID and "),
    ] {
        for command in ["limits list --resources", "acquire user gpt-4 rpm=1", "doctor"] {
            let variables = [&files[..], variables].concat();
            let line = format!("--table weirgate {options} {command}");
            let run = weirgate_with(&variables, line.as_str());
            assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{run:?}");
            assert!(run.stderr.starts_with(expected), "{line}: {run:?}");
            assert_eq!(run.stderr.lines().count(), 1, "{run:?}");
        }
    }
}
