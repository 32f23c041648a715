//! `linewarden certificate`: creates a CA for the fleet and issues certificates.

use linewarden_cli::failure::Failure;
use linewarden_cli::output::Output;
use linewarden_cli::results;
use linewarden_cli::{secret_file, tls};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use linewarden_link::gateway_uri;
use linewarden_protocol::ids::GatewayId;
use linewarden_service::user_uri;
use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const KEY_BYTES_MAX: usize = 16_384;
/// Lifetime of a CA, days.
const CA_DAYS: u32 = 3_650;
/// Default lifetime of other certificates, days.
const CERTIFICATE_DAYS: u32 = 398;

/// Subcommands of `linewarden certificate`.
#[derive(Subcommand, Debug)]
pub enum CertificateCommand {
    /// Create a CA: a directory with its certificate and private key
    #[command(after_help = "\
Examples:
  linewarden certificate ca --out pki

Keep the directory offline; only ca.pem is copied to controllers and gateways. To replace a CA, create another one, distribute both \
certificates in one file, issue new certificates, then remove the old CA from the file.")]
    Ca(CaArgs),
    /// Create a certificate for a controller
    #[command(after_help = "\
Examples:
  linewarden certificate controller --ca pki --name ctl-a.example --name 192.0.2.10 --out ctl-a")]
    Controller(ControllerArgs),
    /// Create a certificate for a gateway ID
    #[command(after_help = "\
Examples:
  linewarden certificate gateway --ca pki --id 7 --out gateway-7

Never create a certificate for an ID that another gateway has or had: keys are derived from the ID.")]
    Gateway(GatewayArgs),
    /// Create a certificate for an API user
    #[command(after_help = "\
Examples:
  linewarden certificate user --ca pki --name build-server --out build-server

The user's role is set by `linewarden user create NAME --certificate`.")]
    User(UserArgs),
}

/// Arguments of `linewarden certificate ca`.
#[derive(Args, Debug)]
pub struct CaArgs {
    /// Output directory for the CA; must not exist (path)
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
}

/// Arguments that all certificates have in common.
#[derive(Args, Debug)]
pub struct CommonArgs {
    /// Directory of the CA (path)
    #[arg(long, value_name = "DIRECTORY")]
    ca: PathBuf,
    /// Output files: the certificate NAME.pem and the key NAME.key; existing files are not overwritten (path)
    #[arg(long, value_name = "NAME")]
    out: PathBuf,
    /// Lifetime of the certificate (integer, days)
    #[arg(long, value_name = "DAYS", default_value_t = CERTIFICATE_DAYS, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
}

/// Arguments of `linewarden certificate controller`.
#[derive(Args, Debug)]
pub struct ControllerArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// DNS name or address of the controller; repeatable (text)
    #[arg(long = "name", value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Arguments of `linewarden certificate gateway`.
#[derive(Args, Debug)]
pub struct GatewayArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Gateway ID, as in the gateway's configuration (integer)
    #[arg(long, value_name = "NUMBER")]
    id: u32,
}

/// Arguments of `linewarden certificate user`.
#[derive(Args, Debug)]
pub struct UserArgs {
    #[command(flatten)]
    common: CommonArgs,
    /// Name of the API user (text)
    #[arg(long, value_name = "NAME")]
    name: String,
}

/// Creates a CA or a certificate.
pub fn run(command: &CertificateCommand, output: Output) -> Result<(), Failure> {
    match command {
        CertificateCommand::Ca(args) => ca(args, output),
        CertificateCommand::Controller(args) => {
            let mut parameters = CertificateParams::new(args.names.clone()).map_err(failed)?;
            parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            let name = args.names.first().map_or("controller", String::as_str);
            issue(&args.common, parameters, name, output)
        }
        CertificateCommand::Gateway(args) => {
            let parameters = client_parameters(&gateway_uri(GatewayId(args.id)))?;
            issue(&args.common, parameters, &format!("gateway {}", args.id), output)
        }
        CertificateCommand::User(args) => {
            let is_plain =
                |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'@');
            if args.name.is_empty() || !args.name.bytes().all(is_plain) {
                return Err(Failure::input(
                    "--name: invalid character; use letters, digits, and - _ . @",
                ));
            }
            let parameters = client_parameters(&user_uri(&args.name))?;
            issue(&args.common, parameters, &args.name, output)
        }
    }
}

fn failed(error: rcgen::Error) -> Failure {
    Failure::failed(format!("creating the certificate failed: {error}"))
}

/// Parameters of a client certificate whose subject alternative name is `uri`.
fn client_parameters(uri: &str) -> Result<CertificateParams, Failure> {
    let mut parameters = CertificateParams::default();
    let uri = Ia5String::try_from(uri).map_err(failed)?;
    parameters.subject_alt_names = vec![SanType::URI(uri)];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(parameters)
}

/// Sets the validity, which starts an hour ago, for machines whose clock is slow.
fn set_times(parameters: &mut CertificateParams, days: u32) -> Result<(), Failure> {
    let now_s = i64::try_from(linewarden_cli::now_s()?).unwrap_or_default();
    let timestamp = |at_s: i64| {
        time::OffsetDateTime::from_unix_timestamp(at_s).map_err(|error| {
            Failure::failed(format!(
                "invalid system time for a certificate: {error}; set the clock"
            ))
        })
    };
    parameters.not_before = timestamp(now_s.saturating_sub(3_600))?;
    parameters.not_after = timestamp(now_s.saturating_add(i64::from(days).saturating_mul(86_400)))?;
    Ok(())
}

fn ca(args: &CaArgs, output: Output) -> Result<(), Failure> {
    if args.out.symlink_metadata().is_ok() {
        return Err(Failure::input(format!(
            "{} already exists and a CA is not overwritten: name another directory",
            args.out.display()
        )));
    }
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    parameters
        .distinguished_name
        .push(DnType::CommonName, "Linewarden CA");
    set_times(&mut parameters, CA_DAYS)?;
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.self_signed(&key).map_err(failed)?;
    std::fs::create_dir(&args.out)
        .map_err(|error| Failure::input(format!("{}: cannot be created: {error}", args.out.display())))?;
    results::write_private(&args.out.join(CA_KEY), key.serialize_pem())?;
    results::write(&args.out.join(CA_CERT), certificate.pem())?;
    output.object(&serde_json::json!({ "ca": args.out.join(CA_CERT), "key": args.out.join(CA_KEY) }))?;
    output.line(format_args!(
        "created a CA in {}; keep the directory offline and distribute only {CA_CERT}",
        args.out.display()
    ))
}

fn issue(
    common: &CommonArgs,
    mut parameters: CertificateParams,
    name: &str,
    output: Output,
) -> Result<(), Failure> {
    let (cert, key) = (with_suffix(&common.out, "pem"), with_suffix(&common.out, "key"));
    for path in [&cert, &key] {
        results::check_new(path, false)?;
    }
    let issuer = issuer(&common.ca)?;
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    // RFC 5280, 4.2.1.1: strict clients refuse a certificate without this extension.
    parameters.use_authority_key_identifier_extension = true;
    set_times(&mut parameters, common.days)?;
    let pair = KeyPair::generate().map_err(failed)?;
    let certificate = parameters.signed_by(&pair, &issuer).map_err(failed)?;
    results::write_private(&key, pair.serialize_pem())?;
    results::write(&cert, certificate.pem())?;
    output.object(&serde_json::json!({ "cert": cert, "key": key, "days": common.days }))?;
    output.line(format_args!(
        "created {} and {}, valid for {} days",
        cert.display(),
        key.display(),
        common.days
    ))
}

/// Appends a file extension: `gateway-1.2` and `pem` become `gateway-1.2.pem`.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    name.into()
}

fn issuer(directory: &Path) -> Result<Issuer<'static, KeyPair>, Failure> {
    let (cert, key) = (directory.join(CA_CERT), directory.join(CA_KEY));
    let text = secret_file::read(&key, KEY_BYTES_MAX)?;
    let no_key = |_| Failure::input(format!("{}: not a private key in PEM format", key.display()));
    let text = std::str::from_utf8(&text).map_err(|_| no_key(rcgen::Error::CouldNotParseKeyPair))?;
    let pair = KeyPair::from_pem(text).map_err(no_key)?;
    let chain = tls::read_certificates(&cert)?;
    let no_ca = || Failure::input(format!("{}: not a CA certificate in PEM format", cert.display()));
    let chain = String::from_utf8(chain).map_err(|_| no_ca())?;
    Issuer::from_ca_cert_pem(&chain, pair).map_err(|_| no_ca())
}
