//! The table that a new stack takes in after a restore is the template's, without what a restore
//! leaves out.

use weirgate_testkit::template::{properties, read};

#[test]
fn a_restored_table_is_the_one_of_the_template() {
    let restored = read(include_str!("../../../scripts/restored-table.yaml"));
    let (deployed, restored) = (
        properties("Table"),
        &restored["Resources"]["Table"]["Properties"],
    );
    let kept = [
        "AttributeDefinitions",
        "BillingMode",
        "GlobalSecondaryIndexes",
        "KeySchema",
    ];
    for name in kept {
        assert_eq!(deployed[name], restored[name], "{name}");
    }
    // If it were imported with a stream, the deployment after it would find nothing to change and
    // give it none.
    let names = restored
        .as_object()
        .expect("properties are a mapping")
        .keys()
        .map(String::as_str);
    assert_eq!(
        names.collect::<std::collections::BTreeSet<_>>(),
        kept.into()
    );
}
