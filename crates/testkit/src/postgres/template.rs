//! The template that every instance is a copy of.
//!
//! What must stay true: a template is either complete or not there. It is built
//! beside its final name, under a file lock, and renamed. It is never changed
//! afterwards; a new version of the server, or of the recipe below, gets a new
//! name.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use super::{DATABASE, ROLE, SUPERUSER, user};
use crate::child::{RunAs, inherited_env};
use crate::locate::Program;

/// Raise when the recipe changes.
const RECIPE: u32 = 1;

/// A fresh copy of the template, ready to be started.
pub(super) struct Instance {
    pub program: PathBuf,
    pub data: PathBuf,
    pub run_as: Option<RunAs>,
}

pub(super) fn new_instance() -> anyhow::Result<Instance> {
    let folder = Program::Postgres.locate()?;
    let run_as = user::find_unprivileged_user()?;
    let temp = user::reachable_temp_dir(run_as);
    let template = find_or_build_template(&folder, &temp, run_as)?;

    let data = copy_to_new_data_dir(&template)?;
    Ok(Instance {
        program: folder.join("postgres"),
        data,
        run_as,
    })
}

/// A new folder that the server can use, with the contents of another.
pub(super) fn copy_to_new_data_dir(from: &Path) -> anyhow::Result<PathBuf> {
    let run_as = user::find_unprivileged_user()?;
    let temp = user::reachable_temp_dir(run_as);
    let data = create_folder_for(&temp, "airlock-postgres-", run_as)?;
    copy_data_dir(&data, from)?;
    Ok(data)
}

/// Replaces what is in a data folder by the contents of another.
pub(super) fn replace_data_dir(data: &Path, from: &Path) -> anyhow::Result<()> {
    for entry in std::fs::read_dir(data)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    copy_data_dir(data, from)
}

fn copy_data_dir(data: &Path, from: &Path) -> anyhow::Result<()> {
    let mut copy = build_command(Path::new("cp"), user::find_unprivileged_user()?, data);
    copy.arg("-R").arg(from.join(".")).arg(data);
    run_command(&mut copy, "").with_context(|| format!("copying {}", from.display()))?;
    Ok(std::fs::set_permissions(
        data,
        PermissionsExt::from_mode(0o700),
    )?)
}

/// Runs a client program of the server's.
pub(super) fn run_client_program(program: &str, args: &[&str]) -> anyhow::Result<()> {
    let folder = Program::Postgres.locate()?;
    let mut command = build_command(&folder.join(program), None, &std::env::temp_dir());
    run_command(command.args(args), "")?;
    Ok(())
}

fn find_or_build_template(
    folder: &Path,
    temp: &Path,
    run_as: Option<RunAs>,
) -> anyhow::Result<PathBuf> {
    let owner = run_as.map_or_else(|| rustix::process::geteuid().as_raw(), |user| user.uid);
    let cache = temp.join(format!("airlock-testkit-postgres-{owner}"));
    std::fs::create_dir_all(&cache).with_context(|| format!("making {}", cache.display()))?;
    change_owner(&cache, run_as)?;
    // The name can be guessed, so somebody else might have made it first.
    ensure!(
        cache.symlink_metadata()?.uid() == owner,
        "{} belongs to somebody else",
        cache.display()
    );

    let version = run_command(
        build_command(&folder.join("postgres"), None, temp).arg("--version"),
        "",
    )?;
    let name: String = version
        .trim()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || c == '.' {
                c
            } else {
                '-'
            }
        })
        .collect();
    let template = cache.join(format!("{name}-recipe-{RECIPE}"));
    if template.is_dir() {
        return Ok(template);
    }

    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(cache.join("lock"))
        .context("opening the template's lock")?;
    lock.lock().context("waiting for the template's lock")?;
    if template.is_dir() {
        return Ok(template);
    }
    let building = create_folder_for(&cache, "building-", run_as)?;
    let built = build_template(folder, &building, run_as)
        .and_then(|()| Ok(std::fs::rename(&building, &template)?));
    if built.is_err() {
        // Nothing may stay behind under a name that nobody will look for.
        let _ = std::fs::remove_dir_all(&building);
    }
    built.context("building the Postgres template")?;
    Ok(template)
}

fn build_template(folder: &Path, data: &Path, run_as: Option<RunAs>) -> anyhow::Result<()> {
    let mut initdb = build_command(&folder.join("initdb"), run_as, data);
    initdb
        .args(["--username", SUPERUSER, "--auth", "trust"])
        .args(["--encoding", "UTF8", "--locale", "C"])
        // Small segments make small copies: one megabyte instead of sixteen.
        .args(["--no-sync", "--wal-segsize", "1", "--pgdata"])
        .arg(data);
    run_command(&mut initdb, "")?;

    let mut single = build_command(&folder.join("postgres"), run_as, data);
    single
        .args(["--single", "-c", "fsync=off", "-D"])
        .arg(data)
        .arg("postgres");
    let sql =
        format!("CREATE ROLE {ROLE} LOGIN CREATEDB\nCREATE DATABASE {DATABASE} OWNER {ROLE}\n");
    // In this mode a failed statement does not change the exit status.
    let output_text = run_command(&mut single, &sql)?;
    ensure!(
        !output_text.contains("ERROR"),
        "setting up the database: {output_text}"
    );
    Ok(())
}

fn create_folder_for(
    parent: &Path,
    prefix: &str,
    run_as: Option<RunAs>,
) -> anyhow::Result<PathBuf> {
    let path = tempfile::Builder::new()
        .prefix(prefix)
        .tempdir_in(parent)
        .with_context(|| format!("making a folder in {}", parent.display()))?
        .keep();
    change_owner(&path, run_as)?;
    Ok(path)
}

fn change_owner(path: &Path, run_as: Option<RunAs>) -> anyhow::Result<()> {
    match run_as {
        Some(user) => chown(path, Some(user.uid), Some(user.gid))
            .with_context(|| format!("giving {} away", path.display())),
        None => Ok(()),
    }
}

fn build_command(program: &Path, run_as: Option<RunAs>, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .envs(inherited_env())
        .env("LC_ALL", "C")
        .current_dir(dir);
    if let Some(user) = run_as {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Runs it to its end with `input`; what it output_text, on both outputs.
fn run_command(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("running {name}"))?;
    if let Some(mut stdin) = child.stdin.take()
        && !input.is_empty()
    {
        stdin.write_all(input.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let mut output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    output_text.push_str(&String::from_utf8_lossy(&output.stderr));
    ensure!(
        output.status.success(),
        "{name}: {}: {output_text}",
        output.status
    );
    Ok(output_text)
}
