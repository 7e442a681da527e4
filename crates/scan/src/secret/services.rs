//! Tokens of model providers and of monitoring.

use crate::detector::Spec;

pub(super) const TOKENS: &[Spec] = &[
    Spec::token(
        "openai_api_key",
        &["sk-"],
        r"sk-(?:(?:proj|svcacct|admin|service)-[A-Za-z0-9_-]{20,200}|[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}|[A-Za-z0-9]{48})",
    ),
    Spec::token(
        "anthropic_api_key",
        &["sk-ant-"],
        r"sk-ant-(?:api|admin|oat|ort|sid)[0-9]{2}-[A-Za-z0-9_-]{80,130}",
    ),
    Spec::token(
        "openrouter_api_key",
        &["sk-or-v1-"],
        r"sk-or-v1-[a-f0-9]{64}",
    ),
    Spec::token("deepseek_api_key", &["sk-"], r"sk-[a-f0-9]{32}"),
    Spec::token("groq_api_key", &["gsk_"], r"gsk_[A-Za-z0-9]{52}"),
    Spec::token(
        "huggingface_token",
        &["hf_", "api_org_"],
        r"(?:hf_|api_org_)[A-Za-z0-9]{34}",
    ),
    Spec::token("replicate_token", &["r8_"], r"r8_[A-Za-z0-9]{37}"),
    Spec::token("perplexity_api_key", &["pplx-"], r"pplx-[A-Za-z0-9]{48}"),
    Spec::token("xai_api_key", &["xai-"], r"xai-[A-Za-z0-9]{70,90}"),
    Spec::token("nvidia_api_key", &["nvapi-"], r"nvapi-[A-Za-z0-9_-]{60,70}"),
    Spec::token("cerebras_api_key", &["csk-"], r"csk-[a-z0-9]{48}"),
    Spec::token("fireworks_api_key", &["fw_"], r"fw_[A-Za-z0-9]{24}"),
    Spec::token(
        "together_api_key",
        &["tgp_v1_"],
        r"tgp_v1_[A-Za-z0-9_-]{43}",
    ),
    Spec::token("elevenlabs_api_key", &["sk_"], r"sk_[a-f0-9]{48}"),
    Spec::token(
        "langsmith_key",
        &["lsv2_"],
        r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}",
    ),
    Spec::token(
        "langfuse_key",
        &["sk-lf-"],
        r"sk-lf-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    Spec::token("pinecone_api_key", &["pcsk_"], r"pcsk_[A-Za-z0-9_]{60,80}"),
    Spec::token(
        "tavily_api_key",
        &["tvly-"],
        r"tvly-(?:dev-|prod-)?[A-Za-z0-9-]{32,40}",
    ),
    Spec::token(
        "newrelic_key",
        &["NRAK-", "NRII-", "NRIQ-"],
        r"NR(?:AK-[A-Z0-9]{27}|II-[A-Za-z0-9_-]{32}|IQ-[A-Za-z0-9_-]{32})",
    ),
    Spec::token(
        "grafana_cloud_token",
        &["glc_"],
        r"glc_[A-Za-z0-9+/]{32,400}={0,3}",
    ),
    Spec::token(
        "grafana_service_token",
        &["glsa_"],
        r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}",
    ),
    Spec::token(
        "grafana_api_key",
        &["eyJrIjoi"],
        r"eyJrIjoi[A-Za-z0-9]{70,400}={0,3}",
    ),
    Spec::token(
        "sentry_token",
        &["sntrys_", "sntryu_"],
        r"(?:sntrys_eyJ[A-Za-z0-9+/_=-]{80,500}|sntryu_[a-f0-9]{64})",
    ),
    Spec::token(
        "honeycomb_key",
        &["hcaik_", "hcaic_", "hcxik_", "hcamk_"],
        r"hc[a-z]{2,3}_[a-z0-9]{58,64}",
    ),
    Spec::token(
        "dynatrace_token",
        &["dt0c01.", "dt0s01.", "dt0s02."],
        r"dt0[cs]0[12]\.[A-Z0-9]{8,24}\.[A-Z0-9]{64}",
    ),
    Spec::token("posthog_personal_key", &["phx_"], r"phx_[A-Za-z0-9]{40,60}"),
    Spec::token(
        "axiom_token",
        &["xaat-", "xapt-"],
        r"xa[ap]t-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    ),
    Spec::token(
        "mapbox_secret_token",
        &["sk.eyJ"],
        r"sk\.eyJ[A-Za-z0-9_-]{40,120}\.[A-Za-z0-9_-]{20,30}",
    ),
    Spec::token("segment_token", &["sgp_"], r"sgp_[A-Za-z0-9]{64}"),
];
