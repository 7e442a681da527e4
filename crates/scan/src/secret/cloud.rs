//! Tokens of clouds and databases.

use crate::detector::{Check, Spec};

pub(super) const TOKENS: &[Spec] = &[
    Spec::token(
        "aws_access_key_id",
        &["AKIA", "ASIA", "ABIA", "ACCA", "A3T"],
        r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    ),
    Spec::token(
        "aws_bedrock_key",
        &["ABSKQmVkcm9ja0FQSUtleS"],
        r"ABSKQmVkcm9ja0FQSUtleS[A-Za-z0-9+/]{80,200}={0,2}",
    ),
    Spec::token("gcp_api_key", &["AIza"], r"AIza[A-Za-z0-9_-]{35}"),
    Spec::token(
        "google_oauth_token",
        &["ya29."],
        r"ya29\.[A-Za-z0-9_-]{20,400}",
    ),
    Spec::token(
        "google_oauth_secret",
        &["GOCSPX-"],
        r"GOCSPX-[A-Za-z0-9_-]{28}",
    ),
    Spec::token(
        "google_refresh_token",
        &["1//0"],
        r"1//0[A-Za-z0-9_-]{40,160}",
    ),
    Spec::token(
        "azure_ad_client_secret",
        &["Q~"],
        r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}",
    )
    .back(4),
    Spec::token(
        "azure_storage_key",
        &["AccountKey="],
        r"(?i:AccountKey)=([A-Za-z0-9+/]{86}==)",
    ),
    Spec::token(
        "azure_shared_access_key",
        &["SharedAccessKey="],
        r"(?i:SharedAccessKey)=([A-Za-z0-9+/]{43}=)",
    ),
    Spec::token(
        "azure_sas_signature",
        &["sig="],
        r"sig=([A-Za-z0-9%/+]{40,120}(?:%3[Dd]|=))",
    ),
    Spec::token(
        "azure_devops_token",
        &["AZDO"],
        r"[A-Za-z0-9]{76}AZDO[A-Za-z0-9]{4}",
    )
    .back(76),
    Spec::token(
        "alibaba_access_key_id",
        &["LTAI"],
        r"LTAI[A-Za-z0-9]{12,20}",
    ),
    Spec::token("tencent_secret_id", &["AKID"], r"AKID[A-Za-z0-9]{32}"),
    Spec::token("yandex_api_key", &["AQVN"], r"AQVN[A-Za-z0-9_-]{35,38}"),
    Spec::token(
        "yandex_iam_token",
        &["t1."],
        r"t1\.[A-Za-z0-9_-]{20,200}={0,2}\.[A-Za-z0-9_-]{86}={0,2}",
    ),
    Spec::token("scaleway_access_key", &["SCW"], r"SCW[A-Z0-9]{17}"),
    Spec::token(
        "digitalocean_token",
        &["dop_v1_", "doo_v1_", "dor_v1_"],
        r"do[opr]_v1_[a-f0-9]{64}",
    ),
    Spec::token(
        "cloudflare_origin_ca_key",
        &["v1.0-"],
        r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}",
    ),
    Spec::token(
        "fly_token",
        &["fo1_", "fm1r_", "fm1a_", "fm2_"],
        r"(?:fo1_[A-Za-z0-9_-]{43}|fm1[ar]_[A-Za-z0-9+/]{100,700}={0,3}|fm2_[A-Za-z0-9+/]{100,700}={0,3})",
    ),
    Spec::token(
        "supabase_token",
        &["sbp_", "sb_secret_"],
        r"(?:sbp_[a-f0-9]{40}|sb_secret_[A-Za-z0-9_-]{31,64})",
    ),
    Spec::token(
        "planetscale_token",
        &["pscale_"],
        r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_=.-]{32,64}",
    ),
    Spec::token("neon_api_key", &["napi_"], r"napi_[a-z0-9]{40,70}"),
    Spec::token(
        "mongodb_atlas_secret",
        &["mdb_sa_sk_"],
        r"mdb_sa_sk_[A-Za-z0-9_-]{40}",
    ),
    Spec::token(
        "databricks_token",
        &["dapi", "dkea", "dose"],
        r"(?:dapi|dkea|dose)[a-f0-9]{32}(?:-[0-9])?",
    ),
    Spec::token("confluent_secret", &["cflt"], r"cflt[A-Za-z0-9+/]{60}"),
    Spec::token("aiven_password", &["AVNS_"], r"AVNS_[A-Za-z0-9_-]{19}"),
    Spec::token("clickhouse_secret", &["4b1d"], r"4b1d[A-Za-z0-9]{38}"),
    Spec::token(
        "atlassian_api_token",
        &["ATATT3"],
        r"ATATT3[A-Za-z0-9_-]{60,220}=[A-F0-9]{8}",
    )
    .checked(Check::AtlassianCrc(6)),
    Spec::token(
        "bitbucket_access_token",
        &["ATCTT3"],
        r"ATCTT3[A-Za-z0-9_-]{60,220}=[A-F0-9]{8}",
    )
    .checked(Check::AtlassianCrc(6)),
    Spec::token(
        "bitbucket_app_password",
        &["ATBB"],
        r"ATBB[A-Za-z0-9_-]{24}[A-Fa-f0-9]{8}",
    ),
];
