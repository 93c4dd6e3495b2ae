//! What the files of the repository say about the code and about each other.

use weirgate_tests as fixtures;

mod deployment;
mod permissions;
mod sources;
mod template;
mod versions;
