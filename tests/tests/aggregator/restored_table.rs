//! The table that a new stack takes in after a restore is the template's, without what a restore
//! leaves out.

use saphyr::{LoadableYamlNode, Yaml};

fn properties(text: &str) -> Yaml<'_> {
    let document = Yaml::load_from_str(text)
        .expect("the file is YAML")
        .swap_remove(0);
    document["Resources"]["Table"]["Properties"].clone()
}

#[test]
fn a_restored_table_is_the_one_of_the_template() {
    let (deployed, restored) = (
        include_str!("../../../template.yaml"),
        include_str!("../../../scripts/restored-table.yaml"),
    );
    let (deployed, restored) = (properties(deployed), properties(restored));
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
        .as_mapping()
        .expect("properties are a mapping")
        .keys()
        .map(|name| name.as_str().unwrap());
    assert_eq!(
        names.collect::<std::collections::BTreeSet<_>>(),
        kept.into()
    );
}
