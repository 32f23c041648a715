//! The generated examples are configurations.

use std::path::Path;

use crate::agent::AgentConfig;
use crate::controller::ControllerConfig;
use crate::example::{example, example_with_all_fields};
use crate::gateway::GatewayConfig;
use crate::schema::schema_of;
use crate::{ConfigFile, Configuration};

fn check_examples<T: Configuration>() {
    let schema = schema_of::<T>();
    for text in [example(&schema), example_with_all_fields(&schema)] {
        let parsed = ConfigFile::<T>::parse(Path::new("example.toml"), text);
        assert_eq!(parsed.problems, []);
    }
}

#[test]
fn the_examples_are_configurations_as_they_are_and_with_every_field() {
    check_examples::<AgentConfig>();
    check_examples::<ControllerConfig>();
    check_examples::<GatewayConfig>();
}

#[test]
fn the_example_of_a_controller_is_valid() {
    let text = example(&schema_of::<ControllerConfig>());
    let parsed = ConfigFile::<ControllerConfig>::parse(Path::new("controller.toml"), text);
    assert!(parsed.validate().is_ok());
}
