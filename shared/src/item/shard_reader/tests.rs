use super::*;

const SOUND: [(&str, &str); 15] = [
    (attr::SHARD_COUNT, "1"),
    (attr::REFILLED_AT, "0"),
    (attr::WRITE_SEQ, "0"),
    (attr::BIRTH, "0"),
    (attr::HOUR, "0"),
    (attr::TAKES, "0"),
    (attr::TAKES_HOUR_BASE, "0"),
    (attr::TAKES_DAY_BASE, "0"),
    ("b_a_tk", "0"),
    ("b_a_tc", "0"),
    ("b_a_cp", "0"),
    ("b_a_ra", "0"),
    ("b_a_rp", "1"),
    ("b_a_bh", "0"),
    ("b_a_bd", "0"),
];

fn read(attributes: &[(&str, &str)]) -> Result<Shard, ItemError> {
    let mut reader = ShardReader::default();
    for (name, number) in SOUND.iter().chain(attributes) {
        reader.attribute(name, &Attr::N(number))?;
    }
    reader.finish(BucketKey::parse("default/BUCKET#e-1#gpt-4#0").expect("a key"))
}

#[test]
fn a_rule_has_a_period_and_nothing_negative() {
    assert!(read(&[]).is_ok());
    for wrong in [("b_a_rp", "0"), ("b_a_ra", "-1"), ("b_a_cp", "-1")] {
        assert_eq!(read(&[wrong]).unwrap_err().attribute, "b_a_rp", "{wrong:?}");
    }
}

#[test]
fn there_is_one_shard_or_more() {
    assert_eq!(read(&[(attr::SHARD_COUNT, "1")]).map(|shard| shard.shard_count), Ok(1));
    assert_eq!(read(&[(attr::SHARD_COUNT, "0")]).unwrap_err().attribute, attr::SHARD_COUNT);
}

/// An item with more limits must not cause splits, refills and copies that DynamoDB refuses.
#[test]
fn a_bucket_of_more_limits_than_a_write_can_bear_is_refused() {
    let with = |limits: usize| {
        let names = (1..limits).map(|at| format!("l{at}"));
        let field = |name: String| Field::ALL.map(|field| format!("b_{name}_{}", field.suffix()));
        let names: Vec<_> = names.flat_map(field).collect();
        read(&names.iter().map(|name| (name.as_str(), "1")).collect::<Vec<_>>())
    };
    assert_eq!(with(MAX_BUCKET_LIMITS).map(|shard| shard.limits.len()), Ok(MAX_BUCKET_LIMITS));
    let error = with(MAX_BUCKET_LIMITS + 1).unwrap_err().to_string();
    assert!(
        error.contains("41 limits")
            && error.contains(&format!("{MAX_BUCKET_LIMITS} limits at most")),
        "{error}"
    );
}

#[test]
fn usage_that_makes_no_sense_is_named() {
    for (attribute, number, takes) in [
        (attr::BIRTH, "1", "from 0 to the `v`"),
        (attr::BIRTH, "-1", "from 0 to the `v`"),
        (attr::HOUR, "-1", "hours since 1970"),
        (attr::HOUR, "70380768", "hours since 1970"),
        (attr::HOUR, "9223372036854775807", "hours since 1970"),
        ("b_a_bh", "far", "a whole number"),
    ] {
        let error = read(&[(attribute, number)]).unwrap_err();
        assert_eq!(error.attribute, attribute);
        assert!(error.to_string().contains(takes), "{error}");
    }
    assert!(read(&[("b_a_bh", "5"), (attr::HOUR, "70380767")]).is_ok(), "usage may be negative");
}

#[test]
fn an_item_is_as_large_as_its_names_and_values() {
    // Each number is of one digit, in two bytes.
    let names: usize = SOUND.iter().map(|(name, _)| name.len()).sum();
    assert_eq!(read(&[]).map(|shard| shard.size_bytes), Ok(SOUND.len() * 2 + names));
}
