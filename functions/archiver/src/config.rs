//! Settings from the environment.

use aws_credential_types::Credentials;
use weirgate_runtime::{ConfigError, not_empty, required};

/// The function's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// `ARCHIVE_BUCKET`: bucket that objects are written to.
    pub bucket: String,
    /// `AWS_REGION`: region of the bucket.
    pub region: String,
    /// `AWS_ENDPOINT_URL_S3` or `AWS_ENDPOINT_URL`: URL of S3 instead of AWS's.
    pub endpoint: Option<String>,
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`: credentials of the role.
    pub credentials: Credentials,
}

impl Config {
    /// Name of the bucket; required.
    pub const ARCHIVE_BUCKET: &str = "ARCHIVE_BUCKET";

    /// Reads the variables through `lookup`. All but the bucket's are Lambda's own.
    ///
    /// # Errors
    /// [`ConfigError`] naming the variable that is missing.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let lookup = not_empty(lookup);
        let of_lambda = |name| required(&lookup, name, "set by Lambda's runtime");
        Ok(Self {
            bucket: required(&lookup, Self::ARCHIVE_BUCKET, "the name of an S3 bucket")?,
            region: of_lambda("AWS_REGION")?,
            endpoint: lookup("AWS_ENDPOINT_URL_S3").or_else(|| lookup("AWS_ENDPOINT_URL")),
            credentials: Credentials::new(
                of_lambda("AWS_ACCESS_KEY_ID")?,
                of_lambda("AWS_SECRET_ACCESS_KEY")?,
                lookup("AWS_SESSION_TOKEN"),
                None,
                "environment",
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: [(&str, &str); 4] = [
        ("ARCHIVE_BUCKET", "archive"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];

    fn read(extra: &[(&str, &str)], without: &str) -> Result<Config, ConfigError> {
        let all = || SET.iter().chain(extra);
        Config::read(|name| {
            let found = all().find(|(known, _)| *known == name && name != without);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_endpoint_of_s3_wins_over_that_of_all_services() {
        let endpoint = |extra: &[(&str, &str)]| read(extra, "").unwrap().endpoint;
        assert_eq!(endpoint(&[("AWS_ENDPOINT_URL", "")]), None);
        let all = ("AWS_ENDPOINT_URL", "http://all");
        assert_eq!(endpoint(&[all]).as_deref(), Some("http://all"));
        let s3 = ("AWS_ENDPOINT_URL_S3", "http://s3");
        assert_eq!(endpoint(&[all, s3]).as_deref(), Some("http://s3"));
    }

    #[test]
    fn a_missing_variable_is_named_in_one_line() {
        for (name, _) in SET {
            let line = read(&[], name).unwrap_err().to_string();
            assert!(line.starts_with(&format!("{name} must be ")), "{line}");
            let end = ", got nothing; set the environment variable";
            assert!(line.ends_with(end) && !line.contains('\n'), "{line}");
        }
    }
}
