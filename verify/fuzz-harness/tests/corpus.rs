//! The corpus that the fuzz targets start from, and every input that one of them has ever found,
//! through the same functions.

use std::path::Path;

use weirgate_fuzz_harness::ALL;

#[test]
fn every_input_of_the_corpus_is_answered() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, decode) in ALL {
        let inputs: Vec<_> = std::fs::read_dir(corpus.join(name))
            .expect(name)
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(inputs.len() >= 2, "{name} starts from something");
        for input in inputs {
            // Seen with the backtrace, if it is the last one.
            println!("{}", input.display());
            decode(&std::fs::read(&input).unwrap());
        }
    }
    let folders = std::fs::read_dir(&corpus).unwrap().count();
    assert_eq!(folders, ALL.len(), "every folder is some decoder's");
}
