//! The proxy of the environment, for requests over TLS.

use aws_smithy_http_client::Connector;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::http::HttpConnectorSettings;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;

/// Returns a connector over TLS behind the proxy of the environment. Its idle connections end after
/// `idle`, if that is given.
#[must_use]
pub fn https_connector(
    idle: Option<std::time::Duration>,
    settings: Option<&HttpConnectorSettings>,
    components: Option<&RuntimeComponents>,
) -> Connector {
    // A proxy that cannot be used is an error of the configuration, see `fault`.
    let proxy = from_lookup(environment).unwrap_or_else(|_| ProxyConfig::disabled());
    let mut connector = Connector::builder().proxy_config(proxy);
    if let Some(idle) = idle {
        connector = connector.pool_idle_timeout(idle);
    }
    connector.set_connector_settings(settings.cloned());
    if let Some(components) = components {
        connector.set_sleep_impl(components.sleep_impl());
    }
    // Ring needs no C toolchain beyond cc for either architecture, and its first handshake is fast
    // on the small CPU share of a small function.
    let connector = connector.tls_provider(Provider::Rustls(CryptoMode::Ring));
    connector.build()
}

/// Returns why the proxy of the environment cannot be used, if so.
pub(crate) fn fault() -> Option<String> {
    from_lookup(environment).err()
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns the proxy: `HTTPS_PROXY`, or else `ALL_PROXY`, but for the hosts of `NO_PROXY`. Plain
/// HTTP has none: it leads to a local table, or to a service of this machine that gives credentials.
fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<ProxyConfig, String> {
    let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
    let either = |name: &str| {
        let lowercase = name.to_lowercase();
        let found = set(name).map(|value| (name.to_owned(), value));
        found.or_else(|| set(&lowercase).map(|value| (lowercase, value)))
    };
    let Some((name, url)) = either("HTTPS_PROXY").or_else(|| either("ALL_PROXY")) else {
        return Ok(ProxyConfig::disabled());
    };
    // The scheme may be left out, as for curl.
    let url = match url.contains("://") {
        true => url,
        false => format!("http://{url}"),
    };
    // Its user and password must not get into an error.
    let proxy = ProxyConfig::https(url).map_err(|_| {
        format!(
            "{name} must be the URL of a proxy, http://HOST:PORT or https://HOST:PORT; correct it"
        )
    })?;
    Ok(match either("NO_PROXY") {
        Some((_, hosts)) => proxy.no_proxy(hosts),
        None => proxy,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<ProxyConfig, String> {
        from_lookup(|name| {
            let found = variables.iter().find(|(set, _)| *set == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn only_requests_over_tls_have_a_proxy() {
        for none in [&[][..], &[("HTTPS_PROXY", "")], &[("HTTP_PROXY", "http://proxy:3128")]] {
            assert!(of(none).unwrap().is_disabled(), "{none:?}");
        }
        for (name, url) in [
            ("HTTPS_PROXY", "http://proxy:3128"),
            ("https_proxy", "proxy:3128"),
            ("ALL_PROXY", "https://user:secret@proxy:3128"),
            ("all_proxy", "proxy.example"),
        ] {
            let proxy = of(&[(name, url), ("no_proxy", ".internal,10.0.0.0/8")]).unwrap();
            assert!(!proxy.is_disabled(), "{name}");
        }
    }

    #[test]
    fn a_proxy_that_is_no_url_is_named_without_its_password() {
        for url in ["socks5://user:secret@proxy:1080", "http://", "a b"] {
            let fault = of(&[("HTTPS_PROXY", url)]).unwrap_err();
            assert!(fault.starts_with("HTTPS_PROXY must be the URL of a proxy"), "{fault}");
            assert!(!fault.contains("secret"), "{fault}");
        }
    }
}
