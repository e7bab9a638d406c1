//! The compose file in `deploy/`: it is whole in itself, and the programs understand what it tells them.
//! Needs no Docker. And the unit of `deploy/dist/`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use forebay_tests::harness::process::{Run, ServerOptions, binary};
use serde_yaml_ng::{Mapping, Value};

/// What the file is made of, variables put in and anchors resolved.
struct Stack {
    whole: Value,
    variables: BTreeMap<String, String>,
}

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(deploy().join(name)).unwrap_or_else(|error| panic!("read deploy/{name}: {error}"))
}

fn yaml(text: &str) -> Value {
    let mut value: Value = serde_yaml_ng::from_str(text).expect("YAML");
    value.apply_merge().expect("anchors that exist");
    value
}

/// The names in `${...}`.
fn names(text: &str) -> BTreeSet<String> {
    text.split("${").skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.to_owned())).collect()
}

impl Stack {
    fn read() -> Self {
        let variables: BTreeMap<String, String> = read(".env")
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split_once('=').unwrap_or_else(|| panic!("deploy/.env: {line}")))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let text = read("docker-compose.yml");
        // As compose does it: in the values, once the YAML is read.
        let mut whole = yaml(&text);
        fill(&mut whole, &variables);
        Self { whole, variables }
    }

    fn services(&self) -> impl Iterator<Item = (&str, &Mapping)> {
        let services = self.whole["services"].as_mapping().expect("services");
        services
            .iter()
            .map(|(name, service)| (name.as_str().expect("a name"), service.as_mapping().expect("a service")))
    }

    /// The services of an image, and the environment of each.
    fn of_image(&self, image: &str) -> Vec<(&str, BTreeMap<String, String>)> {
        let image = format!("forebay/{image}:local");
        let is = |(_, service): &(&str, &Mapping)| service["image"].as_str() == Some(&image);
        let found: Vec<_> =
            self.services().filter(is).map(|(name, service)| (name, environment(service))).collect();
        assert!(!found.is_empty(), "no service of {image}");
        found
    }

    /// The cache nodes; another container has their image too, for its commands.
    fn nodes(&self) -> Vec<(&str, BTreeMap<String, String>)> {
        self.of_image("cache").into_iter().filter(|(name, _)| *name != "certs").collect()
    }
}

/// What the service `certs` makes, made here.
fn certs(stack: &Stack) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let forebay = binary("forebay");
    let path = format!(
        "{}:{}",
        forebay.parent().expect("its folder").display(),
        std::env::var("PATH").expect("a PATH")
    );
    let made = || {
        Run::program("sh", "certs.sh")
            .arg(deploy().join("certs.sh"))
            .arg(folder.path())
            .envs([("PATH", &path), ("CACHE_ALLOW", &stack.variables["CACHE_ALLOW"])])
            .end()
            .expect_success()
    };
    assert!(!made().is_empty());
    assert!(made().is_empty(), "files that are there are not made again");
    folder
}

fn fill(value: &mut Value, variables: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            for (name, with) in variables {
                *text = text.replace(&format!("${{{name}}}"), with);
            }
        }
        Value::Sequence(values) => values.iter_mut().for_each(|value| fill(value, variables)),
        Value::Mapping(values) => values.values_mut().for_each(|value| fill(value, variables)),
        _ => {}
    }
}

fn environment(service: &Mapping) -> BTreeMap<String, String> {
    let Some(Value::Mapping(variables)) = service.get("environment") else { return BTreeMap::new() };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        other => panic!("neither text nor number: {other:?}"),
    };
    variables.iter().map(|(name, value)| (text(name), text(value))).collect()
}

fn strings(value: &Value) -> Vec<String> {
    value.as_sequence().into_iter().flatten().map(|v| v.as_str().expect("text").to_owned()).collect()
}

#[test]
fn the_variables_are_those_of_the_env_file() {
    let stack = Stack::read();
    let used = names(&read("docker-compose.yml"));
    // Compose itself reads this one.
    let own = "COMPOSE_PROJECT_NAME".to_owned();
    let known: BTreeSet<String> = stack.variables.into_keys().filter(|name| *name != own).collect();
    assert_eq!(used, known);
}

#[test]
fn what_services_refer_to_is_there() {
    let stack = Stack::read();
    let top = |section: &str| -> BTreeSet<String> {
        let names = stack.whole[section].as_mapping().expect(section).keys();
        names.map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let (services, networks, volumes) = (top("services"), top("networks"), top("volumes"));
    let mut used = BTreeSet::new();
    for (name, service) in stack.services() {
        let ends = ["certs", "upload", "trainer-0", "trainer-1"].contains(&name);
        assert_eq!(
            service.get("healthcheck").is_none(),
            ends,
            "{name}: a health check, unless it ends by itself"
        );
        assert!(service.get("restart").is_some(), "{name}: no restart policy");
        for network in strings(&service["networks"]) {
            assert!(networks.contains(&network), "{name}: no network {network}");
        }
        for volume in service.get("volumes").map(strings).unwrap_or_default() {
            let source = volume.split(':').next().unwrap_or_default().to_owned();
            match source.starts_with('.') {
                true => assert!(deploy().join(&source).exists(), "{name}: no {source}"),
                false => {
                    assert!(
                        volumes.contains(&source) && used.insert(source.clone())
                            || ["certs", "runs"].contains(&&*source)
                    )
                }
            }
        }
        let others = service.get("depends_on").and_then(Value::as_mapping).cloned().unwrap_or_default();
        for (other, condition) in &others {
            let other = other.as_str().expect("a name");
            assert!(services.contains(other), "{name}: no service {other}");
            let healthy = condition["condition"].as_str() == Some("service_healthy");
            assert_eq!(
                healthy,
                !["certs", "upload"].contains(&other),
                "{name}: waits for {other} in the wrong way"
            );
        }
        if let Some(build) = service.get("build") {
            let context = build["context"].as_str().expect("a context");
            let dockerfile = read(&format!("{context}/Dockerfile"));
            assert!(
                dockerfile.contains("ARG BASE=debian:bookworm-slim\nFROM ${BASE}\n"),
                "{context}: no BASE"
            );
            assert!(build["args"].get("BASE").is_some(), "{name}: BASE is not handed on");
        }
    }
    assert_eq!(used, volumes, "volumes that nobody uses");
}

#[test]
fn images_share_their_first_layer() {
    let stack = Stack::read();
    let step = |context: &str| {
        let text = read(&format!("{context}/Dockerfile"));
        let start = text.find("RUN ").expect("a first step");
        text[start..].split("\n\n").next().expect("its text").to_owned()
    };
    let contexts: BTreeSet<&str> =
        stack.services().filter_map(|(_, s)| s.get("build")?["context"].as_str()).collect();
    assert_eq!(contexts.len(), 5, "{contexts:?}");
    for context in contexts {
        assert_eq!(step(context), step("cache"), "{context}");
    }
}

#[test]
fn nodes_start_with_what_they_are_told() {
    let stack = Stack::read();
    let certs = certs(&stack);
    let nodes = stack.nodes();
    let mut zones = BTreeSet::new();
    for (service, environment) in &nodes {
        assert_eq!(environment["FOREBAY_NODE"], *service);
        assert_eq!(environment["FOREBAY_CLUSTER__ADVERTISE"], format!("https://{service}:7070"));
        assert!(zones.insert(&environment["FOREBAY_CLUSTER__ZONE"]), "{service}: another node's zone");
        let told = |options, (name, value): (&String, &String)| {
            ServerOptions::env(options, name, &value.replace("/certs", &certs.path().display().to_string()))
        };
        let options = environment.iter().fold(ServerOptions::bare(), told);
        // There is no etcd of that name here, which a node survives.
        options.clone().allow_log("etcd does not answer").start().kill();
        let error = options
            .env("FOREBAY_CLUSTER__ZOMES", "x")
            .try_start()
            .err()
            .expect("an unknown setting")
            .to_string();
        assert!(error.contains("zomes"), "{error}");
    }
    assert_eq!(nodes.len(), 3);
}

#[test]
fn nodes_know_all_members_of_etcd() {
    for file in ["docker-compose.yml", "docker-compose.etcd3.yml"] {
        let stack = yaml(&read(file));
        let services = stack["services"].as_mapping().expect("services");
        let named = |prefix: &str| -> Vec<(String, Mapping)> {
            let services = services.iter().map(|(name, service)| (name.as_str().expect("a name"), service));
            let ours = services.filter(|(name, _)| name.starts_with(prefix));
            ours.map(|(name, s)| (name.to_owned(), s.as_mapping().expect("a service").clone())).collect()
        };
        let (members, nodes) = (named("etcd"), named("cache"));
        assert_eq!((members.len(), nodes.len()), (if file.contains("etcd3") { 3 } else { 1 }, 3), "{file}");
        let urls: Vec<String> = members.iter().map(|(name, _)| format!("https://{name}:2379")).collect();
        for (name, node) in &nodes {
            let told = &environment(node)["FOREBAY_CLUSTER__ETCD"];
            assert_eq!(
                serde_json::from_str::<Vec<String>>(told).ok().as_ref(),
                Some(&urls),
                "{file}: {name}"
            );
        }
        let peers: Vec<String> =
            members.iter().map(|(name, _)| format!("{name}=https://{name}:2380")).collect();
        for (name, member) in &members {
            let command = member["command"].as_str().expect("a command");
            let own =
                ["--name ", "--advertise-client-urls https://", "--initial-advertise-peer-urls https://"];
            for flag in own {
                assert!(command.contains(&format!("{flag}{name}")), "{file}: {name}: {flag}");
            }
            let variable = environment(member).get("ETCD_INITIAL_CLUSTER").cloned();
            let cluster = variable.unwrap_or_else(|| {
                command.split("--initial-cluster ").nth(1).unwrap_or_default().trim().to_owned()
            });
            assert_eq!(cluster, peers.join(","), "{file}: {name}");
        }
    }
}

#[test]
fn ranks_understand_their_command() {
    let stack = Stack::read();
    let nodes: Vec<String> =
        stack.nodes().iter().map(|(service, _)| format!("https://{service}:7070")).collect();
    let ranks = stack.of_image("trainer");
    for (rank, (service, environment)) in ranks.iter().enumerate() {
        assert_eq!(environment["FOREBAY_ENDPOINT"], nodes.join(","));
        assert_eq!(
            (&environment["RANK"], environment["WORLD_SIZE"].parse()),
            (&rank.to_string(), Ok(ranks.len()))
        );
        assert_eq!(environment["MASTER_ADDR"], ranks[0].0);
        let command = stack.whole["services"][service]["command"].as_str().expect("a command").to_owned();
        let words: Vec<&str> = command.split_whitespace().collect();
        let ended = Run::new("forebay-train").args(&words).arg("--help").try_end().expect("it runs");
        assert_eq!(ended.code, Some(0), "{command}: {}", ended.stderr);
    }
}

/// Each step of the README installs files one by one, or into a folder.
#[test]
fn the_unit_names_no_file_that_the_readme_does_not_put_there() {
    let (unit, readme) = (read("dist/forebay-server.service"), read("dist/README.md"));
    let path = |line: &str| {
        let at = ["/usr/", "/etc/"].iter().filter_map(|root| line.find(root)).min()?;
        Some(line[at..].to_owned())
    };
    let paths: Vec<String> = unit.lines().filter(|line| !line.starts_with('#')).filter_map(path).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    for path in paths {
        let folder = &path[..=path.rfind('/').expect("an absolute path")];
        let is_there = readme.contains(&path) || readme.contains(&format!("{folder}\n"));
        assert!(is_there, "deploy/dist/README.md does not say who puts {path} there");
    }
}

#[test]
fn prometheus_asks_every_node() {
    let targets = yaml(&read("prometheus.yml"));
    let targets = strings(&targets["scrape_configs"][0]["static_configs"][0]["targets"]);
    let stack = Stack::read();
    let nodes: Vec<String> = stack.nodes().iter().map(|(service, _)| format!("{service}:7071")).collect();
    assert_eq!(targets, nodes);
}
