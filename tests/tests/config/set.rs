//! Limits that live in the table: set, read, deleted, listed; by several at once, and in trouble.

use crate::fixtures::fleet;
use std::collections::VecDeque;
use weirgate_tests::stored::{delete_config, set_config, set_entity};

use crate::fixtures::fleet::{Fleet, secs, tokens};
use crate::fixtures::stored::{
    child, configure, configured, entity, of_entity, of_resource, on, resource, rpm, take,
};
use weirgate::{
    AuditSubject, Config, ConfigChange, ConfigFilter, ConfigLevel, ConfigPatch, ConfigStatus,
    Error, Limit, RateLimiter,
};
use weirgate_testkit::Fault;

/// How often the configuration of the system was changed, as its item says.
fn version(fleet: &Fleet) -> Option<i64> {
    let item = fleet.dynamo.item("default/SYSTEM#", "#CONFIG");
    item["cv"]["N"].as_str().map(|version| version.parse().unwrap())
}

fn rpm_h() -> Limit {
    Limit::per_hour("rph", 7).unwrap()
}

#[tokio::test(start_paused = true)]
async fn what_breaks_a_rule_is_refused_before_anything_is_sent() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = fleet.dynamo.take_requests();
    let many = |count: i64| {
        (0..count).map(|at| Limit::per_day(&format!("limit-{at}"), 1).unwrap()).collect::<Vec<_>>()
    };
    for (limits, says) in [
        (vec![rpm(1), rpm_h(), rpm(2)], "limit \"rpm\" is configured twice"),
        (vec![], "without limits"),
        (many(21), "20 limits at most, those of classes among them, got 21"),
    ] {
        let error = limiter
            .admin()
            .set_config(&ConfigLevel::System, &Config::of(limits))
            .await
            .unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains(says)), "{error}");
    }
    assert_eq!(fleet.dynamo.take_requests(), 0);
    configure(&limiter, &ConfigLevel::System, many(20)).await;
}

#[tokio::test(start_paused = true)]
async fn saying_again_what_is_said_changes_nothing() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(5), rpm_h()]).await;
    set_config(&limiter, &ConfigLevel::System, &Config::of([rpm_h(), rpm(5)])).await;
    assert_eq!(version(&fleet), Some(1));
    assert_eq!(limiter.admin().audit(&AuditSubject::System, None).await.unwrap().items.len(), 1);
}

fn setting(limits: impl Into<Vec<Limit>>) -> ConfigChange {
    ConfigChange::Merge(ConfigPatch { limits: limits.into(), ..ConfigPatch::default() })
}

#[tokio::test(start_paused = true)]
async fn a_change_keeps_what_it_does_not_name_and_returns_before_and_after() {
    let fleet = Fleet::new().await;
    let limiter = configured(&fleet, &ConfigLevel::System, [rpm(5), rpm_h()]).await;
    let change = async |change: ConfigChange| {
        let report =
            limiter.admin().change_config(&ConfigLevel::System, &change, None).await.unwrap();
        let stored = limiter.admin().config(&ConfigLevel::System).await.unwrap();
        assert_eq!(report.after, stored);
        (report.before, report.after)
    };
    let (before, after) = change(setting([rpm(6)])).await;
    assert_eq!(before, Some(Config::of([rpm_h(), rpm(5)])));
    assert_eq!(after, Some(Config::of([rpm_h(), rpm(6)])));
    let disabled = ConfigPatch { status: Some(ConfigStatus::Disabled), ..ConfigPatch::default() };
    let (_, after) = change(ConfigChange::Merge(disabled)).await;
    let disabled = Config { status: ConfigStatus::Disabled, ..Config::of([rpm_h(), rpm(6)]) };
    assert_eq!(after, Some(disabled.clone()));
    let (before, after) = change(ConfigChange::Replace(Config::of([rpm(7)]))).await;
    assert_eq!((before, after), (Some(disabled), Some(Config::of([rpm(7)]))));
    assert_eq!(version(&fleet), Some(4));
    let (before, after) = change(setting([rpm(7)])).await;
    assert_eq!((before, version(&fleet)), (after, Some(4)), "it is so already");
    assert_eq!(change(ConfigChange::Delete).await.1, None);
    assert_eq!(change(ConfigChange::Delete).await, (None, None));
    let nothing = ConfigChange::Merge(ConfigPatch::default());
    let admin = limiter.admin();
    let error = admin.change_config(&ConfigLevel::System, &nothing, None).await;
    assert!(error.unwrap_err().to_string().contains("without limits"));
}

#[tokio::test(start_paused = true)]
async fn changes_of_several_processes_at_once_are_all_made() {
    let (fleet, [one, two]) = Fleet::of().await;
    let set = async |limiter: &RateLimiter, limit| {
        let change = setting([limit]);
        let admin = limiter.admin();
        admin.change_config(&ConfigLevel::System, &change, None).await.unwrap()
    };
    let _ = tokio::join!(set(&one, rpm(5)), set(&two, rpm_h()));
    let stored = one.admin().config(&ConfigLevel::System).await.unwrap();
    assert_eq!(stored, Some(Config::of([rpm_h(), rpm(5)])));
    assert_eq!(version(&fleet), Some(2));
}

#[tokio::test(start_paused = true)]
async fn an_author_is_recorded_behind_the_principal() {
    let fleet = Fleet::new().await;
    let limiter = fleet.limiter_with(|builder| builder.principal("portal")).await;
    let admin = limiter.admin();
    let change = async |author| {
        let change = setting([rpm(5)]);
        admin.change_config(&ConfigLevel::System, &change, author).await
    };
    let longest = "a".repeat(256 - "portal/".len());
    let longer = format!("{longest}a");
    for author in ["", &longer] {
        let error = change(Some(author)).await.unwrap_err();
        assert!(matches!(&error, Error::Invalid(text) if text.contains("1 to 256")), "{error}");
    }
    change(Some(&longest)).await.unwrap();
    admin.delete_config(&ConfigLevel::System).await.unwrap();
    change(Some("ops")).await.unwrap();
    let events = admin.audit(&AuditSubject::System, None).await.unwrap().items;
    let authors: Vec<_> = events.into_iter().map(|event| event.principal).collect();
    let longest = format!("portal/{longest}");
    assert_eq!(authors.len(), 3);
    for author in ["portal/ops", "portal", &longest] {
        assert!(authors.iter().any(|known| known == author), "{authors:?}");
    }
}

/// All pages of a list.
async fn listed(limiter: &RateLimiter, of: ConfigFilter) -> Vec<(ConfigLevel, Config)> {
    let (mut all, mut next) = (vec![], None);
    loop {
        let page = limiter.admin().configs(&of, next.as_ref()).await.unwrap();
        all.extend(page.items);
        next = page.next;
        if next.is_none() {
            return all;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn configurations_are_listed_by_what_they_are_for() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let set = async |level: ConfigLevel, rate| configure(&limiter, &level, [rpm(rate)]).await;
    for (at, name) in ["e-1", "e-2", "e-3"].into_iter().enumerate() {
        let rate = i64::try_from(at).unwrap() + 1;
        set(of_entity(name), rate).await;
        set(on(name, "gpt-4"), rate * 10).await;
        set(on(name, "gpt-5"), rate * 100).await;
    }
    set(of_resource("gpt-4"), 7).await;
    set(ConfigLevel::System, 9).await;
    delete_config(&limiter, &on("e-2", "gpt-4")).await;
    delete_config(&limiter, &of_entity("e-3")).await;
    // Buckets and usage are in the same partitions.
    let _ = take(&limiter, 1).await.unwrap();

    let expect = async |of: ConfigFilter, expected: &[(ConfigLevel, i64)]| {
        let found = listed(&limiter, of.clone()).await;
        let expected: Vec<_> = expected
            .iter()
            .map(|(level, rate)| (level.clone(), Config::of([rpm(*rate)])))
            .collect();
        assert_eq!(found, expected, "{of:?}");
    };
    let of_e3 = [(on("e-3", "gpt-4"), 30), (on("e-3", "gpt-5"), 300)];
    expect(ConfigFilter::Entity(entity("e-3")), &of_e3).await;
    let of_e1 = [(of_entity("e-1"), 1), (on("e-1", "gpt-4"), 10), (on("e-1", "gpt-5"), 100)];
    expect(ConfigFilter::Entity(entity("e-1")), &of_e1).await;
    expect(
        ConfigFilter::Resource(resource("gpt-4")),
        &[(of_resource("gpt-4"), 7), (on("e-1", "gpt-4"), 10), (on("e-3", "gpt-4"), 30)],
    )
    .await;
    let defaults = [(of_entity("e-1"), 1), (of_entity("e-2"), 2)];
    expect(ConfigFilter::Entities, &defaults).await;
    expect(ConfigFilter::Resources, &[(of_resource("gpt-4"), 7)]).await;
    let mut all = listed(&limiter, ConfigFilter::All).await;
    let expected = [(ConfigLevel::System, 9), (of_resource("gpt-4"), 7)];
    let own = [(on("e-2", "gpt-5"), 200)];
    let mut expected: Vec<_> = [&expected[..], &defaults, &of_e1[1..], &own, &of_e3]
        .concat()
        .into_iter()
        .map(|(level, rate)| (level, Config::of([rpm(rate)])))
        .collect();
    assert_eq!(all[0].0, ConfigLevel::System, "the widest first");
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    expected.sort_by(|(one, _), (other, _)| one.cmp(other));
    assert_eq!(all, expected);
}

#[tokio::test(start_paused = true)]
async fn a_long_list_comes_in_pages() {
    let (_fleet, [limiter]) = Fleet::of().await;
    for at in 0..205 {
        let own = on(&format!("e-{at:03}"), "gpt-4");
        configure(&limiter, &own, [rpm(at + 1)]).await;
    }
    let found = listed(&limiter, ConfigFilter::Resource(resource("gpt-4"))).await;
    let rates: Vec<_> = found.iter().map(|(_, config)| config.limits[0].rule().capacity).collect();
    assert_eq!(rates, (1..=205).map(tokens).collect::<Vec<_>>());
}

const FAULTS: [Fault; 9] = [
    Fault::LoseRequest,
    Fault::LoseAnswer,
    Fault::Repeat,
    Fault::Throttle { key_range: true },
    Fault::Throttle { key_range: false },
    Fault::Conflict,
    Fault::ServerError,
    Fault::ServerErrorApplied,
    Fault::Forbidden,
];

#[tokio::test(start_paused = true)]
async fn i7_a_change_in_trouble_happens_once_or_not_at_all() {
    let twice = FAULTS
        .into_iter()
        .flat_map(|first| FAULTS.into_iter().map(move |second| vec![first, second]));
    for trouble in FAULTS.into_iter().map(|fault| vec![fault]).chain(twice) {
        for another_is_faster in [false, true] {
            let (fleet, [limiter, other]) = Fleet::of().await;
            let before = i64::from(another_is_faster);
            let mut faults: VecDeque<_> = trouble.iter().copied().collect();
            if another_is_faster {
                faults.push_front(Fault::LoseRequest);
            }
            let case = format!("{trouble:?}, faster: {another_is_faster}");
            fleet.dynamo.fail_transactions(move |_| faults.pop_front());
            let config = Config::of([rpm(5)]);
            let set = limiter.admin().set_config(&ConfigLevel::System, &config);
            let answer = if another_is_faster {
                // While the first waits to try again.
                let early = async {
                    tokio::task::yield_now().await;
                    other.admin().set_config(&ConfigLevel::System, &Config::of([rpm(1)])).await
                };
                let (answer, early) = tokio::join!(set, early);
                if early.is_err() {
                    continue;
                }
                answer
            } else {
                set.await
            };
            fleet.dynamo.fail_transactions(|_| None);
            let events =
                limiter.admin().audit(&AuditSubject::System, None).await.unwrap().items.len();
            let changes = version(&fleet).unwrap_or_default();
            assert_eq!(
                i64::try_from(events).unwrap(),
                changes,
                "{case}: as many events as changes"
            );
            match answer {
                Ok(()) => assert_eq!(changes, before + 1, "{case}"),
                Err(error) => {
                    assert!(trouble.contains(&Fault::Forbidden), "{case}: {error}");
                    assert!(changes == before || error.is_unknown(), "{case}: {error}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_whose_answer_never_comes_is_in_doubt_and_not_made_twice() {
    let (fleet, [limiter]) = Fleet::of().await;
    let _ = take(&limiter, 1).await.unwrap_err();
    fleet.dynamo.fail_transactions(|_| Some(Fault::LoseAnswer));
    let error =
        limiter.admin().set_config(&ConfigLevel::System, &Config::of([rpm(5)])).await.unwrap_err();
    assert!(error.is_unknown() && error.is_transient(), "{error}");
    assert_eq!(version(&fleet), Some(1));
    fleet.dynamo.fail_transactions(|_| None);
    assert!(
        take(&limiter, 5).await.unwrap().is_granted(),
        "what may have been changed is looked at again"
    );
    configure(&limiter, &ConfigLevel::System, [rpm(5)]).await;
    assert_eq!(version(&fleet), Some(1), "it was made");
}

/// For processes with another configuration, in code; whatever the bucket holds.
#[tokio::test(start_paused = true)]
async fn a_limit_keeps_its_kind_and_the_error_says_how_to_go_on() {
    let kinds = [rpm(60), Limit::concurrent("rpm", 60).unwrap()];
    for (known, other) in [(&kinds[0], &kinds[1]), (&kinds[1], &kinds[0])] {
        let fleet = Fleet::new().await;
        let limiter = configured(&fleet, &ConfigLevel::System, [known.clone()]).await;
        let grant = take(&limiter, 4).await.unwrap().granted().unwrap();
        let before = fleet.bucket().await;
        let next = fleet.limiter().await;
        fleet::pass(secs(61)).await;
        let limits = [other.clone()];
        for amount in [1, 60] {
            let acquire = next.acquire("e-1", "gpt-4").limits(&limits);
            let error = acquire.take("rpm", amount).send().await.unwrap_err();
            let error = error.to_string();
            let says = [
                "\"rpm\"",
                "must stay",
                "'weirgate limits set'",
                "another name",
                "'weirgate erase e-1'",
            ];
            assert!(says.iter().all(|text| error.contains(text)), "{error}");
        }
        assert_eq!(fleet.bucket().await.limits, before.limits);
        assert!(grant.release().await.is_ok());
        assert!(take(&next, 56).await.unwrap().is_granted());
    }
}

/// Whatever level has the other kind, and whether it has it still.
#[tokio::test(start_paused = true)]
async fn no_level_gives_a_limit_another_kind_than_a_bucket_has() {
    let kinds = [rpm(60), Limit::concurrent("rpm", 60).unwrap()];
    let (resource, entity) = (of_resource("gpt-4"), ConfigLevel::Entity(entity("e-1")));
    let both = ConfigLevel::EntityResource("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let levels = [ConfigLevel::System, resource, entity, both];
    for (known, other) in [(&kinds[0], &kinds[1]), (&kinds[1], &kinds[0])] {
        for (at, first) in levels.iter().enumerate() {
            for second in &levels[at..] {
                for is_deleted in [false, true] {
                    let case = format!("{first}, {second}, {is_deleted}: {other}");
                    let fleet = Fleet::new().await;
                    let limiter = configured(&fleet, first, [known.clone()]).await;
                    let grant = take(&limiter, 1).await.unwrap().granted().unwrap();
                    let admin = limiter.admin();
                    if is_deleted {
                        admin.delete_config(first).await.unwrap();
                    }
                    // The index of buckets.
                    fleet::pass(secs(2)).await;
                    let next = Config::of([other.clone()]);
                    let planned = [(second.clone(), Some(next.clone()))];
                    let errors = [
                        admin.set_config(second, &next).await.err(),
                        admin.check_configs(&planned).await.err(),
                    ];
                    // Nothing tells of a level that is gone, except for the buckets of the new one.
                    let is_seen =
                        !is_deleted || first == second || matches!(second, ConfigLevel::Entity(_));
                    for error in errors {
                        let text = error.as_ref().map(ToString::to_string).unwrap_or_default();
                        assert_eq!(text.contains("must stay"), is_seen, "{case}: {text}");
                        assert_eq!(text.contains("another name"), is_seen, "{case}: {text}");
                    }
                    let _ = grant.release().await.unwrap();
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_deletion_leaves_a_limit_of_another_kind_to_a_bucket() {
    let kinds = [rpm(60), Limit::concurrent("rpm", 60).unwrap()];
    let (resource, entity) = (of_resource("gpt-4"), ConfigLevel::Entity(entity("e-1")));
    let both = ConfigLevel::EntityResource("e-1".try_into().unwrap(), "gpt-4".try_into().unwrap());
    let levels = [both, entity, resource, ConfigLevel::System];
    for (at, narrow) in levels.iter().enumerate() {
        for wide in &levels[at + 1..] {
            let fleet = Fleet::new().await;
            let limiter = configured(&fleet, narrow, [kinds[0].clone()]).await;
            configure(&limiter, wide, [kinds[1].clone()]).await;
            let admin = limiter.admin();
            assert!(admin.check_configs(&[(narrow.clone(), None)]).await.is_ok());
            assert!(take(&limiter, 1).await.unwrap().is_granted());
            fleet::pass(secs(2)).await;
            for error in [
                admin.delete_config(narrow).await.err(),
                admin.check_configs(&[(narrow.clone(), None)]).await.err(),
            ] {
                let text = error.map(|error| error.to_string()).unwrap_or_default();
                assert!(text.contains("must stay a rate"), "{narrow}, {wide}: {text}");
            }
            // Together with the wider level's it is no change of a kind.
            let all = [(narrow.clone(), None), (wide.clone(), None)];
            assert!(admin.check_configs(&all).await.is_ok(), "{narrow}, {wide}");
        }
    }
}

/// A forgotten `/minute` is corrected as long as nothing has it.
#[tokio::test(start_paused = true)]
async fn a_limit_that_no_bucket_has_may_change_its_kind() {
    let (fleet, [limiter]) = Fleet::of().await;
    let resource = of_resource("gpt-4");
    configure(&limiter, &resource, [Limit::concurrent("rpm", 60).unwrap()]).await;
    configure(&limiter, &resource, [rpm(60)]).await;
    assert!(take(&fleet.limiter().await, 60).await.unwrap().is_granted());
}

async fn config_versions(limiter: &RateLimiter, levels: &[ConfigLevel]) -> Vec<i64> {
    let stored = limiter.admin().read_configs(levels).await.unwrap();
    stored.iter().map(|stored| stored.version).collect()
}

#[tokio::test(start_paused = true)]
async fn a_configuration_is_replaced_only_at_the_version_that_was_read() {
    let (_fleet, [limiter, other]) = Fleet::of().await;
    let levels = [ConfigLevel::System, of_resource("gpt-4")];
    let (more, less) = (Config::of([rpm(600)]), Config::of([rpm(60)]));
    let replaced = async |version, next| {
        let done = limiter.admin().replace_config(&levels[0], version, next).await;
        (done.unwrap(), config_versions(&limiter, &levels).await)
    };
    assert_eq!(replaced(0, Some(&more)).await, (true, vec![1, 0]));
    assert_eq!(
        replaced(0, Some(&more)).await,
        (true, vec![1, 0]),
        "a repeated call finds its own change"
    );
    set_config(&other, &levels[0], &less).await;
    assert_eq!(replaced(1, Some(&more)).await, (false, vec![2, 0]));
    set_config(&other, &levels[0], &more).await;
    assert_eq!(
        replaced(1, Some(&more)).await,
        (false, vec![3, 0]),
        "equal, but by two changes of others"
    );
    assert_eq!(replaced(3, None).await, (true, vec![4, 0]));
    assert_eq!(limiter.admin().config(&levels[0]).await.unwrap(), None);

    let twice = [ConfigLevel::System, ConfigLevel::System];
    let error = limiter.admin().read_configs(&twice).await.unwrap_err();
    assert!(
        matches!(&error, Error::Invalid(text) if text.contains("system is given twice")),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn entities_are_read_in_the_order_asked_for() {
    let (_fleet, [limiter]) = Fleet::of().await;
    let child = child("e-1", "team");
    set_entity(&limiter, &child).await;
    let ids = ["none", "e-1", "none"].map(entity);
    let read = limiter.admin().read_entities(&ids).await.unwrap();
    assert_eq!(read, [None, Some(child), None]);
}
