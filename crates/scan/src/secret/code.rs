//! Tokens of version control, package registries, builds and deployments.

use crate::detector::{Check, Spec};

pub(super) const TOKENS: &[Spec] = &[
    Spec::token("github_personal_token", &["ghp_"], r"ghp_[A-Za-z0-9]{36}")
        .checked(Check::Base62Crc(4)),
    Spec::token("github_oauth_token", &["gho_"], r"gho_[A-Za-z0-9]{36}")
        .checked(Check::Base62Crc(4)),
    Spec::token(
        "github_app_token",
        &["ghu_", "ghs_"],
        r"gh[us]_[A-Za-z0-9]{36}",
    )
    .checked(Check::Base62Crc(4)),
    Spec::token(
        "github_refresh_token",
        &["ghr_"],
        r"ghr_[A-Za-z0-9]{36}(?:[A-Za-z0-9]{40})?",
    )
    .checked(Check::Base62Crc(4)),
    Spec::token(
        "github_fine_grained_token",
        &["github_pat_"],
        r"github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}",
    ),
    Spec::token(
        "gitlab_token",
        &[
            "glpat-", "gldt-", "glrt-", "glrtr-", "glcbt-", "glft-", "glimt-", "gloas-", "glsoat-",
            "glffct-", "glwt-",
        ],
        r"gl(?:pat|dt|rt|rtr|cbt|ft|imt|oas|soat|ffct|wt)-[A-Za-z0-9_.-]{20,320}",
    ),
    Spec::token("gitlab_trigger_token", &["glptt-"], r"glptt-[a-f0-9]{40}"),
    Spec::token(
        "gitlab_agent_token",
        &["glagent-"],
        r"glagent-[A-Za-z0-9_-]{50,1024}",
    ),
    Spec::token(
        "gitlab_runner_token",
        &["GR1348941"],
        r"GR1348941[A-Za-z0-9_-]{20}",
    ),
    Spec::token("npm_token", &["npm_"], r"npm_[A-Za-z0-9]{36}").checked(Check::Base62Crc(4)),
    Spec::token(
        "pypi_token",
        &["pypi-AgEIcHlwaS5vcmc", "pypi-AgENdGVzdC5weXBp"],
        r"pypi-(?:AgEIcHlwaS5vcmc|AgENdGVzdC5weXBpLm9yZw|AgENdGVzdC5weXBp)[A-Za-z0-9_-]{50,1000}",
    ),
    Spec::token("rubygems_token", &["rubygems_"], r"rubygems_[a-f0-9]{48}"),
    Spec::token("crates_io_token", &["cio"], r"cio[A-Za-z0-9]{32}"),
    Spec::token("clojars_token", &["CLOJARS_"], r"CLOJARS_[a-z0-9]{60}"),
    Spec::token("nuget_api_key", &["oy2"], r"oy2[a-z0-9]{43}"),
    Spec::token(
        "packagist_token",
        &["packagist_"],
        r"packagist_[ou][ru]t_[a-f0-9]{68}",
    ),
    Spec::token(
        "docker_token",
        &["dckr_pat_", "dckr_oat_"],
        r"dckr_(?:pat_[A-Za-z0-9_-]{27}|oat_[A-Za-z0-9_-]{32})",
    ),
    Spec::token("artifactory_api_key", &["AKCp"], r"AKCp[A-Za-z0-9]{69}"),
    Spec::token(
        "artifactory_reference_token",
        &["cmVmd"],
        r"cmVmd[A-Za-z0-9]{59}",
    ),
    Spec::token(
        "circleci_token",
        &["CCIPAT_", "CCIPRJ_"],
        r"CCIP(?:AT|RJ)_[A-Za-z0-9]{22}_[a-f0-9]{40}",
    ),
    Spec::token("buildkite_token", &["bkua_"], r"bkua_[a-f0-9]{40}"),
    Spec::token(
        "terraform_cloud_token",
        &[".atlasv1."],
        r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}",
    )
    .back(14),
    Spec::token(
        "vault_token",
        &["hvs.", "hvb.", "hvr."],
        r"hv(?:s\.[A-Za-z0-9_-]{24,320}|b\.[A-Za-z0-9_-]{100,320}|r\.[A-Za-z0-9_-]{24,320})",
    ),
    Spec::token("pulumi_token", &["pul-"], r"pul-[a-f0-9]{40}"),
    Spec::token(
        "doppler_token",
        &[
            "dp.pt.",
            "dp.st.",
            "dp.ct.",
            "dp.sa.",
            "dp.scim.",
            "dp.audit.",
        ],
        r"dp\.(?:pt|st|ct|sa|scim|audit)\.(?:[a-z0-9_-]{2,35}\.)?[A-Za-z0-9]{40,44}",
    ),
    Spec::token(
        "heroku_token",
        &["HRKU-"],
        r"HRKU-(?:AA)?[A-Za-z0-9_-]{36,60}",
    ),
    Spec::token(
        "netlify_token",
        &["nfp_", "nfc_"],
        r"nf[pc]_[A-Za-z0-9_]{36,64}",
    ),
    Spec::token(
        "vercel_token",
        &["vcp_", "vck_", "vci_"],
        r"vc[pki]_[A-Za-z0-9]{24,64}",
    ),
    Spec::token("render_api_key", &["rnd_"], r"rnd_[A-Za-z0-9]{28,40}"),
    Spec::token("infracost_token", &["ico-"], r"ico-[A-Za-z0-9]{32}"),
    Spec::token("openshift_token", &["sha256~"], r"sha256~[A-Za-z0-9_-]{43}"),
    Spec::token("octopus_api_key", &["API-"], r"API-[A-Z0-9]{26}"),
    Spec::token(
        "harness_token",
        &["pat."],
        r"pat\.[A-Za-z0-9_-]{22}\.[0-9a-f]{24}\.[A-Za-z0-9]{20}",
    ),
    Spec::token("prefect_token", &["pnu_"], r"pnu_[a-z0-9]{36}"),
    Spec::token(
        "sourcegraph_token",
        &["sgp_"],
        r"sgp_(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}",
    ),
    Spec::token(
        "sonar_token",
        &["sqp_", "squ_", "sqa_"],
        r"sq[pua]_[a-f0-9]{40}",
    ),
    Spec::token(
        "launchdarkly_key",
        &["api-", "sdk-"],
        r"(?:api|sdk)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    Spec::token(
        "postman_api_key",
        &["PMAK-"],
        r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}",
    ),
    Spec::token("readme_api_key", &["rdme_"], r"rdme_[a-z0-9]{70}"),
    Spec::token(
        "tailscale_key",
        &["tskey-"],
        r"tskey-(?:[a-z]{2,10}-)?[A-Za-z0-9]{8,24}(?:CNTRL)?-[A-Za-z0-9]{20,48}",
    ),
    Spec::token(
        "onepassword_token",
        &["ops_eyJ"],
        r"ops_eyJ[A-Za-z0-9+/_-]{250,4000}={0,3}",
    ),
    Spec::token(
        "onepassword_secret_key",
        &["A3-"],
        r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})-[A-Z0-9]{5}-[A-Z0-9]{5}-[A-Z0-9]{5}",
    ),
    Spec::token(
        "age_secret_key",
        &["AGE-SECRET-KEY-1"],
        r"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}",
    ),
];
