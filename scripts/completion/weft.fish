# Completion of weft in fish: verbs, options and keys of the config, as the program itself lists them.
function __weft_words
    set -l line (commandline -opc)
    set -l verb (string match -r '^[a-z].*' -- $line[2])
    test "$verb" = bench -o "$verb" = plan; and set -a verb (string match -r '^[a-z][a-z-]*$' -- $line[3])
    set -l rows ($line[1] $verb --help=words 2>/dev/null; or $line[1] $verb[1] --help=words 2>/dev/null)
    set -l takes (string match -- "$line[-1]"\t'*' $rows | string split -f 2 \t)
    switch "$takes"
        case 'KEY*'
            $line[1] config | string replace -r '$' =
        case '*|*'
            string split '|' $takes
        case FILE FOLDER DIR RUN PREFIX CONFIG CLUSTER PROGRAM IMAGE
            __fish_complete_path (commandline -ct)
        case ''
            printf '%s\n' $rows | string replace -r '\t.*\t' \t
            test -n "$verb"; and __fish_complete_path (commandline -ct)
    end
end
complete -c weft -f -a '(__weft_words)'
