//! No stream has the password of a URL, wherever it is given.

use super::fixtures::{Table, weirgate_with};

type Variables<'a> = &'a [(&'a str, &'a str)];

const SCHEMES: [&str; 7] = ["HTTP", "https", "REDIS", "Rediss", "ftp", "x+y", "-"];
/// Users, passwords and hosts of URLs.
const RESTS: [&str; 10] = [
    "some:s3cret@127.0.0.1:1",
    "some:s3cret@127.0.0.1:99999",
    "some:s3cret@",
    ":s3cret/a@b@127.0.0.1:1/0?x=y",
    "s3cret@127.0.0.1:1#",
    "some:s3cret and s3cret@127.0.0.1:1",
    "some:'s3cret@127.0.0.1:1",
    "some:\"s3cret@127.0.0.1:1",
    "some:a://s3cret@127.0.0.1:1",
    "some:a@b c s3cret@127.0.0.1:1",
];

#[tokio::test(flavor = "multi_thread")]
async fn the_password_of_a_url_is_in_neither_stream() {
    let table = Table::new().await;
    let options: Vec<_> = table.options.iter().map(String::as_str).collect();
    let nothing = ["--table", "weirgate", "--endpoint-url", "http://127.0.0.1:1"];
    let mut shown = vec![];
    for (at, rest) in RESTS.into_iter().enumerate() {
        for scheme in ["http", "redis", SCHEMES[at % SCHEMES.len()]] {
            let url = format!("{scheme}://{rest}");
            let agent = [&options[..], &["doctor", "--agent", &url]].concat();
            let metrics = [&nothing[..], &["page", "--port", "0", "--metrics", &url]].concat();
            let runs: [(Variables<'_>, Vec<&str>); 10] = [
                (&[], vec!["--store", &url, "switches"]),
                (&[], vec!["--table", "t", "buckets", &url]),
                (&[], vec!["--table", &url, "--region", "x", "peek", "a/b", "c"]),
                (&[], vec!["--table", &url, "--region", "x", "purge"]),
                (&[], vec!["--table", "t", "--endpoint-url", &url, "switches"]),
                (&[], agent),
                (&[], metrics),
                (&[], vec!["local", "--port", "0", "--page-port", "0", "--store", &url]),
                (&[("WEIRGATE_STORE", &url)], vec!["switches"]),
                (&[("AWS_ENDPOINT_URL_DYNAMODB", &url)], vec!["--table", "t", "switches"]),
            ];
            for (variables, words) in runs {
                let json = [&["--json", "--timeout", "1s"], &words[..]].concat();
                let run =
                    weirgate_with(variables, if at.is_multiple_of(2) { &json } else { &words });
                let is_shown = format!("{}{}", run.stdout, run.stderr).contains("s3cret");
                shown.extend(is_shown.then(|| format!("{words:?}: {run:?}")));
            }
        }
    }
    assert!(shown.is_empty(), "{shown:#?}");
}
