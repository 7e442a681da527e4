//! Commands, queries and instructions that somebody placed in an output so that whoever
//! uses it next runs them.

use crate::detector::Spec;
use crate::report::Severity;

pub(crate) const SPECS: &[Spec] = &[
    Spec::injection(
        "shell_injection",
        &[
            "rm -", "| sh", "|sh", "| bash", "|bash", "| zsh", "| sudo", "/dev/tcp/", "bash -i", "nc -e", "ncat -e", "nc -c",
            ":(){", "mkfifo", "; cat /etc", "/etc/shadow", "$(curl", "$(wget", "$(bash", "$(cat", "invoke-expression",
            "downloadstring", "-encodedcommand", "; wget ", "; curl ", "&& curl ", "&& wget ", "| python", "| perl",
        ],
        r#"(?ix)
          \b rm \s+ (?: -[a-z]*r[a-z]* \s+ -?[a-z]*f? | -[a-z]*f[a-z]* \s+ -[a-z]*r | -[a-z]*(?:rf|fr)[a-z]* ) \s* (?: --no-preserve-root \s+ )? (?: / (?: \s | \* | $ ) | / (?: etc | usr | home | var | bin | boot | root | lib | opt ) /? (?: \* | \s | ; | $ ) | ~ | \$HOME )
        | \b (?: curl | wget | fetch ) \s [^\n|;&]{1,200} \| \s* (?: sudo \s+ )? (?: ba|z|da|k )? sh \b
        | \b (?: curl | wget ) \s [^\n|;&]{1,200} \| \s* (?: sudo \s+ )? (?: python[0-9.]* | perl | ruby ) \b
        | \b base64 \s+ (?: -d | --decode | -D ) [^\n]{0,40} \| \s* (?: ba|z )? sh \b
        | /dev/tcp/ [0-9a-z.-]+ / [0-9]+
        | \b bash \s+ -i \s* >& 
        | \b (?: nc | ncat | netcat ) \s+ [^\n]{0,60} -[ec] \s* /?(?:bin/)?(?: ba )? sh \b
        | :\(\)\s*\{\s*:\s*\|\s*:\s*&\s*\}\s*;
        | \b mkfifo \s+ \S+ \s* ; [^\n]{0,100} \b (?: nc | sh ) \b
        | [;&|`] \s* (?: cat | less | head | tail ) \s+ /etc/(?: passwd | shadow )
        | \$\( \s* (?: (?: curl | wget | nc | bash | sh ) \s [^\n)]{0,200} (?: https?:// | \| | -c \b ) | cat \s+ /etc/ )
        | [;&|] \s* (?: curl | wget ) \s+ (?: -\S+ \s+ )* ["']? https?:// \S+ \s* (?: \| | -O | > | && )
        | \b (?: iex | invoke-expression ) \s* \(? \s* \(? \s* (?: new-object | \[ | iwr | invoke-webrequest )
        | \b powershell (?: \.exe )? \s [^\n]{0,80} -e (?: nc | ncodedcommand )? \s+ [a-z0-9+/=]{20,}
        "#,
    ),
    Spec::injection(
        "sql_injection",
        &[
            "union", "drop table", "drop database", "' or ", "\" or ", "') or ", "'or'", "or 1=1", "xp_cmdshell", "' and ", "sleep(",
            "benchmark(", "waitfor delay", "pg_sleep(", "delete from", "into outfile", "truncate table", "'; ", "'--", "information_schema",
        ],
        r#"(?ix)
          ['"] \s* \)* \s* (?: or | and | \|\| ) \s* \(* ['"]? (?: 1 | 0 | 2 | true | a | x | 'a | 'x ) ['"]? \s* (?: = | like ) \s* ['"]? (?: 1 | 0 | 2 | true | a | x ) \b
        | \b or \s+ 1 \s* = \s* 1 \s* (?: -- | \# | /\* | ; | $ )
        | (?: ['"] [\t\x20]* \)* | = [\t\x20]* -? [0-9]+ [\t\x20]* \)* ) [\t\x20]+ union [\t\x20]+ (?: all [\t\x20]+ | distinct [\t\x20]+ )? select \b
        | ['"] [\t\x20]* \)* [\t\x20]* ; [\t\x20]* (?: (?: drop | truncate | alter ) [\t\x20]+ (?: table | database | schema | view | index | user ) | delete [\t\x20]+ from | update [\t\x20]+ \w+ [\t\x20]+ set | insert [\t\x20]+ into | exec | shutdown ) \b [^\n]{0,200} (?: -- | /\* | \# )
        | ; \s* (?: drop | truncate ) \s+ (?: table | database | schema ) \s+ \S+ \s* ;? \s* --
        | \b xp_cmdshell \b
        | ['"] [\t\x20]* \)* [\t\x20]* (?: ; | and | or | \|\| ) [\t\x20]* (?: select \s+ )? (?: sleep | benchmark | pg_sleep | waitfor \s+ delay ) \b
        | \b union \s+ (?: all \s+ )? select \s+ [^\n]{0,120} \b information_schema \b
        | \b into \s+ (?: out | dump ) file \s+ ['"]
        | ' \s* \)* \s* -- \s* $
        "#,
    ),
    Spec::injection(
        "prompt_injection",
        &[
            "ignore", "disregard", "forget", "override", "system prompt", "developer mode", "you are now", "jailbreak", "<|im_start|>",
            "<|system|>", "new instructions", "hidden instructions", "do anything now", "ignoriere", "vergiss", "ignorez", "ignora", "oublie", "忽略",
            "do not tell the user", "without telling the user", "don't tell the user", "initial instructions",
        ],
        r"(?ix)
          \b (?: ignore | disregard | forget | override | bypass ) \s+ (?: (?: all | any | every | everything | the | of | your | my | our | these | those | previous | prior | above | earlier | preceding | former | in | said | told | you | were | was | have | been | and | other | safety | system | original | initial ) \s+ ){1,6} (?: instructions? | prompts? | rules | directions | guidelines | directives | commands | context | constraints | training )
        | \b (?: forget | disregard | ignore ) \s+ (?: everything | all (?: \s+ of \s+ (?: that | it ))? ) \s+ (?: above | before | you | prior | that \s+ (?: came | was) )
        | \b you \s+ are \s+ now \s+ (?: in \s+ )? (?: an? \s+ )? (?: dan \b | developer \s+ mode | jailbroken | unrestricted | unfiltered | free \s+ from )
        | \b (?: reveal | print | show | repeat | output | tell \s+ me | leak | display | dump ) \s+ (?: me \s+ )? (?: your | the ) \s+ (?: full \s+ | entire \s+ | hidden \s+ | secret \s+ | initial \s+ | original \s+ )* (?: system \s+ prompt | system \s+ message | hidden \s+ instructions | initial \s+ instructions )
        | <\| (?: im_start | system | im_end ) \|>
        | \b (?: enable | enter | activate ) \s+ (?: developer | jailbreak | dan | god ) \s+ mode
        | \b do \s+ anything \s+ now \b
        | \b (?: do \s+ not | don't | without ) \s+ tell (?: ing )? \s+ the \s+ user \b
        | \b (?: new | updated | real ) \s+ instructions \s* : 
        | \b (?: ignoriere | vergiss ) \s+ (?: bitte \s+ )? (?: alle | s(?:ä|ae)mtliche | deine | die ) \s+ (?: \w+ \s+ ){0,2} (?: anweisungen | vorgaben | regeln )
        | \b (?: ignorez | ignore | oublie | oubliez ) \s+ (?: toutes | tes | les | vos ) \s+ (?: \w+ \s+ ){0,2} (?: instructions | consignes | règles )
        | \b (?: ignora | olvida | ignore ) \s+ (?: todas | las | tus | tutte | le ) \s+ (?: \w+ \s+ ){0,3} (?: instrucciones | instruções | istruzioni | reglas )
        | 忽略 (?: 之前 | 以上 | 先前 | 所有 ) .{0,12} (?: 指令 | 指示 | 提示 )
        ",
    )
    .rated(Severity::High, 80),
];
