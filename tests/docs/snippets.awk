# Cuts the fenced c blocks out of Markdown files: awk -v out=DIR -f snippets.awk FILE ...
# Each block becomes a file whose #line directive points back at the document, and prints a line
# "KIND FILE WHERE" (see snippets.sh for the kinds).

FNR == 1 {
    inside = 0
    base = FILENAME
    gsub(/[^A-Za-z0-9]/, "_", base)
}

!inside && /^```/ {
    inside = 1
    wanted = /^```c( |$)/
    name = $2
    where = FILENAME ":" FNR
    line = FNR + 1
    text = ""
    has_main = has_include = 0
    next
}

inside && /^```/ {
    inside = 0
    if (!wanted) {
        next
    }
    if (name == "excerpt") {
        print "excerpt", "-", where
        next
    }
    file = out "/" (name != "" ? name ".h" : base "_" line ".c")
    if (name == "" && !has_include) {
        printf "#include \"snapkv.h\"\n#include <math.h>\n#include <stdint.h>\n#include <stdio.h>\n" \
               "#include <stdlib.h>\n#include <string.h>\n" > file
    }
    printf "#line %d \"%s\"\n%s", line, FILENAME, text > file
    close(file)
    print (name != "" ? "named" : has_main ? "program" : "code"), file, where
    next
}

inside {
    text = text $0 "\n"
    has_main = has_main || /^int main\(/
    has_include = has_include || /^#include/
}
