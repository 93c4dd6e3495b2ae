//! Refuses what is given twice. One of two values would be ignored, and nothing would say which.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

use clap::error::ErrorKind;
use clap::{ArgMatches, Command, ValueHint};

/// Checks that no name is given two values, and no option is given both before and after the name
/// of the command. clap itself refuses an option that is given twice in one place.
///
/// # Errors
/// If one is.
pub fn check(
    program: &mut Command,
    matches: &ArgMatches,
    arguments: &[OsString],
) -> Result<(), clap::Error> {
    if let Some(text) = global_twice(program, arguments) {
        return Err(program.error(ErrorKind::ArgumentConflict, text));
    }
    let (mut command, mut matches) = (program, matches);
    loop {
        if let Some(text) = value_twice(command, matches) {
            return Err(command.error(ErrorKind::ArgumentConflict, text));
        }
        let below = matches.subcommand().and_then(|(name, matches)| {
            let command = command.find_subcommand_mut(name)?;
            Some((command, matches))
        });
        match below {
            Some(below) => (command, matches) = below,
            None => return Ok(()),
        }
    }
}

/// Returns what is wrong if an option of every command is given twice.
fn global_twice(program: &Command, arguments: &[OsString]) -> Option<String> {
    let is_option = |text: &&OsString| *text != "--";
    let options: Vec<_> = arguments.iter().take_while(is_option).collect();
    let globals = program.get_arguments();
    let mut globals = globals.filter(|argument| argument.is_global_set());
    let twice = globals.find(|argument| {
        let is_this = |text: &&&OsString| {
            let name = text.to_str().and_then(|text| text.strip_prefix("--"));
            let name = name.and_then(|name| name.split('=').next());
            name.is_some_and(|name| argument.get_long() == Some(name))
        };
        options.iter().filter(is_this).count() > 1
    })?;
    Some(format!("the argument '{twice}' cannot be used multiple times"))
}

/// Returns what is wrong if an argument of the command has two values for one name.
fn value_twice(command: &Command, matches: &ArgMatches) -> Option<String> {
    command.get_arguments().find_map(|argument| {
        // What follows `--` are the arguments of another command.
        if argument.is_last_set() || !matches.ids().any(|id| id == argument.get_id()) {
            return None;
        }
        let is_whole = [ValueHint::AnyPath, ValueHint::Url].contains(&argument.get_value_hint());
        let values = matches.get_raw(argument.get_id().as_str())?;
        let mut names = values.map(|value| if is_whole { value } else { name(value) });
        let mut seen = BTreeSet::new();
        let twice = names.find(|name| !seen.insert(*name))?;
        let twice = twice.to_string_lossy();
        Some(format!("{twice:?} is given twice for '{argument}': give it once"))
    })
}

/// Returns what a value is given to: `tpm` of `tpm=500`.
fn name(value: &OsStr) -> &OsStr {
    let bytes = value.as_encoded_bytes();
    let end = bytes.iter().position(|byte| *byte == b'=');
    let text = value.to_str();
    text.zip(end).map_or(value, |(text, end)| OsStr::new(&text[..end]))
}
