//! What a server says of itself before it is used: its answers to `INFO` and `CLUSTER NODES`.

use crate::ErrorKind;

/// Oldest version of the protocol that is known to run the script.
const LEAST_VERSION: u64 = 7;

/// Returns a field of an answer to INFO.
pub(super) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

/// Returns whether a server is of a cluster, by its answer to INFO.
pub(super) fn is_of_cluster(info: &str) -> bool {
    // Valkey says it under another name.
    let mut modes = ["redis_mode", "server_mode"].into_iter();
    modes.any(|name| field(info, name) == Some("cluster"))
}

/// Returns why a replica is refused, by its answer to INFO, and the remedy. It is another server after a failover, so
/// this may pass. Of a cluster, it leads to its primary.
pub(super) fn replica(info: &str) -> Option<(ErrorKind, String)> {
    let field = |name: &str| field(info, name);
    if field("role") != Some("slave") || is_of_cluster(info) {
        return None;
    }
    let [host, port] = ["master_host", "master_port"].map(|name| field(name).unwrap_or_default());
    let reason = format!(
        "must be a primary, got a replica of {host}:{port}, which takes no writes; give the URL of the primary, or a \
         name that follows it"
    );
    Some((ErrorKind::Unavailable, reason))
}

/// Returns why a server is refused whatever its role, by its answer to INFO, and the remedy.
pub(super) fn unfit(info: &str, accept_eviction: bool) -> Option<(ErrorKind, String)> {
    let field = |name: &str| field(info, name);
    let rejected = |reason: String| Some((ErrorKind::Rejected, reason));
    // Valkey also has the version of Redis that it began from.
    let (name, version) = match field("valkey_version") {
        Some(version) => ("Valkey", version),
        None => ("Redis", field("redis_version")?),
    };
    let major = version.split('.').next().and_then(|major| major.parse().ok());
    if major.is_some_and(|major: u64| major < LEAST_VERSION) {
        return rejected(format!(
            "must have version {LEAST_VERSION}.0 or newer, got {name} {version}; upgrade it"
        ));
    }
    if field("arch_bits") == Some("32") {
        return rejected(
            "must be a build for 64 bits, got one for 32; install another one".to_owned(),
        );
    }
    match field("maxmemory_policy") {
        Some(policy) if policy != "noeviction" && !accept_eviction => rejected(format!(
            "must have the maxmemory-policy noeviction, got {policy}, by which buckets are evicted and then are full \
             again; set it by CONFIG SET maxmemory-policy noeviction, or accept evictions"
        )),
        _ => None,
    }
}

/// Returns the address of a server that works, of a line of `CLUSTER NODES`: `10.0.0.1:6379`, or its name where it
/// has one, which a certificate is for.
pub(super) fn node(line: &str) -> Option<String> {
    let mut columns = line.split(' ');
    let (address, flags) = (columns.nth(1)?, columns.next()?);
    if flags.split(',').any(|flag| flag.starts_with("fail") || flag == "noaddr") {
        return None;
    }
    let (address, more) = address.split_once('@')?;
    let (_, port) = address.rsplit_once(':')?;
    let name = more.split(',').nth(1);
    let name = name.filter(|name| !name.is_empty() && !name.contains('='));
    Some(name.map_or_else(|| address.to_owned(), |name| format!("{name}:{port}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_loses_buckets_is_refused_with_the_value_and_the_remedy() {
        let info = |version: &str, policy: &str| {
            format!(
                "# Server\r\n{version}\r\nredis_mode:standalone\r\nmaxmemory_policy:{policy}\r\n"
            )
        };
        for version in ["redis_version:7.0.15", "redis_version:8.2.1"] {
            assert_eq!(unfit(&info(version, "noeviction"), false), None);
            assert_eq!(unfit(&info(version, "allkeys-lru"), true), None);
            let (kind, reason) =
                unfit(&info(version, "allkeys-lru"), false).expect("it is refused");
            assert_eq!(kind, ErrorKind::Rejected);
            assert!(reason.contains("got allkeys-lru") && reason.contains("CONFIG SET"));
        }
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0";
        assert_eq!(unfit(&info(valkey, "noeviction"), false), None);
        let narrow = "redis_version:7.0.15\r\narch_bits:32";
        let narrow = unfit(&info(narrow, "noeviction"), false);
        assert!(narrow.is_some_and(|(_, reason)| reason.contains("got one for 32")));
        let old = unfit(&info("redis_version:6.2.14", "noeviction"), false);
        assert!(old.is_some_and(|(_, reason)| reason.contains("got Redis 6.2.14; upgrade it")));
        let of_replica = |mode: &str| {
            format!("redis_mode:{mode}\r\nrole:slave\r\nmaster_host:db\r\nmaster_port:6379\r\n")
        };
        let (kind, reason) = replica(&of_replica("standalone")).expect("it is refused");
        assert_eq!(kind, ErrorKind::Unavailable);
        assert!(reason.contains("a replica of db:6379") && reason.contains("give the URL"));
        assert_eq!(replica(&of_replica("cluster")), None);
    }

    #[test]
    fn a_server_says_that_it_is_of_a_cluster() {
        for (mode, expected) in [
            ("redis_mode:cluster", true),
            ("server_mode:cluster", true),
            ("redis_mode:standalone", false),
            ("server_mode:standalone", false),
            ("os:cluster", false),
        ] {
            let info = format!("# Server\r\n{mode}\r\ntcp_port:6379\r\n");
            assert_eq!(is_of_cluster(&info), expected, "{mode}");
        }
    }

    #[test]
    fn a_server_of_a_cluster_is_known_by_its_name_if_it_has_one() {
        for (line, expected) in [
            ("07c 10.0.0.1:7000@17000 master - 0 0 1 connected 0-5460", Some("10.0.0.1:7000")),
            (
                "07c 10.0.0.1:7000@17000,redis-failover-0 myself,master - 0 0 1 connected",
                Some("redis-failover-0:7000"),
            ),
            (
                "07c 10.0.0.1:7000@17000,,shard-id=1 slave 08d 0 0 1 connected",
                Some("10.0.0.1:7000"),
            ),
            ("07c ::1:7000@17000,,tls-port=0 master - 0 0 1 connected", Some("::1:7000")),
            ("07c 10.0.0.1:7000@17000 master,fail? - 0 0 1 connected", None),
            ("07c 10.0.0.1:7000@17000 master,fail - 0 0 1 connected", None),
            ("07c :0@0 slave,noaddr - 0 0 1 disconnected", None),
            ("", None),
        ] {
            assert_eq!(node(line).as_deref(), expected, "{line}");
        }
    }
}
