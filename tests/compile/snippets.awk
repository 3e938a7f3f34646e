# Cuts the fenced c blocks out of a Markdown file: awk -v out=DIR -f snippets.awk FILE ...
# Each block becomes a file whose #line directive points back at the document, and prints a line
# "KIND FILE WHERE" (see snippets.sh for the kinds).

function close_block() {
    if (file != "") {
        close(file)
        kind = name != "" ? "named" : has_main ? "program" : "code"
        print kind, file, where
    }
    file = ""
}

FNR == 1 {
    inside = 0
    base = FILENAME
    gsub(/[^A-Za-z0-9]/, "_", base)
}

!inside && /^```c( |$)/ {
    inside = 1
    name = $2
    where = FILENAME ":" FNR
    if (name == "excerpt") {
        print "excerpt", "-", where
        file = ""
        next
    }
    has_main = 0
    file = out "/" (name != "" ? name ".h" : base "_" FNR ".c")
    if (name == "") {
        print "#include \"snapkv.h\"\n#include <math.h>\n#include <stdint.h>\n#include <stdio.h>\n" \
              "#include <stdlib.h>\n#include <string.h>" > file
    }
    printf "#line %d \"%s\"\n", FNR + 1, FILENAME > file
    next
}

inside && /^```/ {
    inside = 0
    close_block()
    next
}

!inside && /^```/ {
    inside = 1 # a block in another language
    file = ""
    next
}

inside && file != "" {
    if ($0 ~ /^int main\(/) {
        has_main = 1
    }
    print > file
}
