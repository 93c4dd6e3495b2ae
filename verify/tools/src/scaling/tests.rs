use super::*;

#[test]
fn dollars_are_rounded_and_grouped() {
    let shown = |pico: u64| PicoDollars(pico).to_string();
    assert_eq!(shown(0), "$0");
    assert_eq!(shown(22_725_000_000_000_000), "$22,725.00");
    assert_eq!(shown(1_234_567_005_000_000_000), "$1,234,567.01");
    assert_eq!(shown(999_400_000_000), "$0.999");
    assert_eq!(shown(6_540_000_000), "$0.007");
}

#[test]
fn an_hour_of_one_acquire_a_second_has_the_known_cost() {
    let Numbers {
        writes,
        shards,
        refills,
        usage_units_an_hour,
        records,
        calls,
        call_ms,
        hour,
        ..
    } = Scenario::alone(1).numbers();
    // A copy ends the hour, another one is of a day, and some hours have two within.
    assert_eq!(
        (writes, shards, refills, usage_units_an_hour, records, calls),
        (1, 1, 0, 4, 1, 1)
    );
    // 256 MB have 8,682 records a second: a record begins one millisecond.
    assert_eq!((function_records(), call_ms), (8_682, 11));
    // A write unit a second is $0.00225 an hour.
    assert_eq!(hour.acquires, PicoDollars(2_250_000_000));
    assert_eq!(hour.usage, PicoDollars(4 * 625_000));
    // 3,600 calls at $0.0000002, and 11 ms of a quarter GB each.
    assert_eq!(
        hour.calls,
        PicoDollars(3_600 * (200_000 + 13_333_400 * 11 / 4_000))
    );
    // A line of 1,050 bytes a call, at $0.50 a GB.
    assert_eq!(hour.logs, PicoDollars(3_600 * 525_000));
    assert_eq!(hour.stream, PicoDollars(0));
}
