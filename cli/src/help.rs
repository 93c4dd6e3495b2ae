//! The help: commands in groups, and the options of every command apart from a command's own.

use std::ffi::OsString;

use clap::Command;
use clap::builder::StyledStr;
use weirgate_shared::docs;

/// What shows the options of every command.
pub const GLOBAL: &str = "--help-global";

/// End of the program's help.
pub const END: &str =
    concat!("weirgate COMMAND --help explains a command.\nGuide: ", docs!("guide/command-line"));

/// The commands by what they are for.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Limits", &["limits", "entities", "plans", "namespaces"]),
    ("Look", &["why", "peek", "buckets", "leases", "usage", "audit", "switches", "page"]),
    (
        "Act",
        &[
            "acquire", "load", "top-up", "reset", "drain", "pause", "resume", "stop", "exempt",
            "start",
        ],
    ),
    ("Operate", &["doctor", "split", "merge", "reconcile", "replay", "erase", "purge"]),
    ("Local", &["local", "docs", "completions", "man"]),
];

/// Returns the program with this help. Its own options are shown by [`GLOBAL`] alone.
pub fn grouped(program: Command) -> Command {
    let template = template(&program);
    program.help_template(template).mut_args(|argument| {
        let is_hidden = argument.is_global_set() && argument.get_long() != GLOBAL.get(2..);
        argument.hide(is_hidden)
    })
}

fn template(program: &Command) -> StyledStr {
    let styles = program.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let names = GROUPS.iter().flat_map(|(_, names)| *names);
    let width = names.map(|name| name.len()).max().unwrap_or_default();
    let mut text = "{about-with-newline}\n{usage-heading} {usage}\n".to_owned();
    for (group, names) in GROUPS {
        text += &format!("\n{header}{group}:{header:#}\n");
        for name in names {
            let about = program.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            text += &format!("  {literal}{name:width$}{literal:#}  {about}\n");
        }
    }
    text += &format!("\n{header}Options:{header:#}\n{{options}}{{after-help}}");
    text.into()
}

/// Returns whether the arguments ask for the options of every command.
pub fn is_about_global(arguments: &[OsString]) -> bool {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    own.into_iter().any(|argument| argument == GLOBAL)
}

/// Returns the options of every command as text, with styles.
pub fn global(program: &Command) -> String {
    let options = program
        .get_arguments()
        .filter(|argument| argument.is_global_set() && argument.get_long() != GLOBAL.get(2..));
    let mut page = Command::new("weirgate")
        .about("Options of every command")
        .override_usage("weirgate COMMAND [OPTIONS]")
        .max_term_width(100)
        .disable_help_flag(true)
        .args(options.cloned().map(|option| option.hide_env_values(true)));
    page.render_long_help().ansi().to_string()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn each_command_is_in_one_group_and_no_line_breaks_in_80_columns() {
        let mut program = Cli::command();
        let mut known: Vec<_> = program.get_subcommands().map(Command::get_name).collect();
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        known.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, known);
        let mut open = vec![program.clone()];
        while let Some(command) = open.pop() {
            open.extend(command.get_subcommands().cloned());
            let ends = [command.get_after_help(), command.get_after_long_help()];
            let end = ends.into_iter().flatten().map(ToString::to_string);
            for line in end.collect::<Vec<_>>().join("\n").lines() {
                assert!(line.chars().count() <= 80, "{}: {line}", command.get_name());
            }
        }
        program = super::grouped(program).term_width(80);
        for line in program.render_long_help().to_string().lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
