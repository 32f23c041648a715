//! The generated examples are configurations.

use std::path::Path;

use crate::example::{example, example_with_all_fields};
use crate::schema::schema_of;
use crate::{ConfigFile, Configuration};

#[allow(dead_code, reason = "used for each feature")]
fn check_examples<T: Configuration>() {
    let schema = schema_of::<T>();
    for text in [example(&schema), example_with_all_fields(&schema)] {
        let parsed = ConfigFile::<T>::parse(Path::new("example.toml"), text);
        assert_eq!(parsed.problems, []);
    }
}

#[cfg(feature = "agent")]
#[test]
fn the_examples_of_an_agent_are_configurations() {
    check_examples::<crate::agent::AgentConfig>();
}

#[cfg(feature = "gateway")]
#[test]
fn the_examples_of_a_gateway_are_configurations() {
    check_examples::<crate::gateway::GatewayConfig>();
}

#[cfg(feature = "controller")]
#[test]
fn the_examples_of_a_controller_are_configurations() {
    use crate::controller::ControllerConfig;

    check_examples::<ControllerConfig>();
    let text = example(&schema_of::<ControllerConfig>());
    let parsed = ConfigFile::<ControllerConfig>::parse(Path::new("controller.toml"), text);
    assert!(parsed.validate().is_ok());
}
