//! Proxies of the environment, which hosts are asked, and where credentials come from.

use weirgate_testkit::Temporary;

use super::fixtures::{Run, asked, weirgate_with};

/// What a proxy answers that refuses every host.
const REFUSED: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n";

/// Lists limits with these variables beside keys and a Region.
fn run(variables: &[(&str, &str)]) -> Run {
    let keys = [
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let command = "--table weirgate limits list --resources";
    weirgate_with(&[&keys[..], variables].concat(), command)
}

#[test]
fn requests_go_through_the_proxy_of_the_environment() {
    for (variable, of_host, host) in [
        ("HTTPS_PROXY", None, "dynamodb.us-east-1.amazonaws.com"),
        ("https_proxy", None, "dynamodb.us-east-1.amazonaws.com"),
        ("ALL_PROXY", Some("AWS_USE_FIPS_ENDPOINT"), "dynamodb-fips.us-east-1.amazonaws.com"),
        ("HTTPS_PROXY", Some("AWS_USE_DUALSTACK_ENDPOINT"), "dynamodb.us-east-1.api.aws"),
    ] {
        let (url, heads) = asked(REFUSED);
        let mut variables = vec![(variable, &*url)];
        variables.extend(of_host.map(|name| (name, "true")));
        let run = run(&variables);
        assert_ne!(run.code, Some(0), "{run:?}");
        let first = heads.try_recv().unwrap_or_else(|_| panic!("{variable}: {run:?}"));
        assert!(first.starts_with(&format!("CONNECT {host}:443 HTTP/1.1\r\n")), "{first}");
    }
}

#[test]
fn hosts_of_no_proxy_and_plain_http_are_reached_directly() {
    for (endpoint, no_proxy) in [
        ("https://127.0.0.1:9", "localhost,127.0.0.0/8"),
        ("http://127.0.0.1:9", "elsewhere.example"),
    ] {
        let (url, heads) = asked(REFUSED);
        let run = run(&[
            ("HTTPS_PROXY", &url),
            ("HTTP_PROXY", &url),
            ("NO_PROXY", no_proxy),
            ("AWS_ENDPOINT_URL", endpoint),
        ]);
        assert_ne!(run.code, Some(0), "{run:?}");
        assert!(heads.try_recv().is_err(), "{endpoint}");
    }
}

#[test]
fn a_proxy_that_is_no_url_is_named() {
    let run = run(&[("HTTPS_PROXY", "socks5://user:secret@proxy:1080")]);
    assert!(run.stderr.contains("HTTPS_PROXY must be the URL of a proxy"), "{run:?}");
    assert!(!run.stderr.contains("secret@"), "{run:?}");
}

/// The SDK says so of a source that is not compiled in.
#[test]
fn credentials_of_login_sso_and_processes_are_compiled_in() {
    let session = "login_session = arn:aws:iam::111111111111:user/me";
    let sso = "sso_start_url = https://example.awsapps.com/start\nsso_region = us-east-1\n\
               sso_account_id = 111111111111\nsso_role_name = me";
    let process = "credential_process = /nowhere/credentials";
    let home = Temporary::folder();
    for source in [session, sso, process] {
        let file =
            Temporary::file("aws-config", &format!("[default]\nregion = us-east-1\n{source}\n"));
        let variables = [
            ("AWS_CONFIG_FILE", file.path()),
            ("HOME", home.path()),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ];
        let run = weirgate_with(&variables, "--table weirgate limits list --resources");
        assert_ne!(run.code, Some(0), "{run:?}");
        assert!(!run.stderr.contains("feature"), "{source}: {run:?}");
        assert!(!run.stderr.is_empty(), "{source}: {run:?}");
    }
}
