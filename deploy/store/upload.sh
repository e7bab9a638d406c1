#!/usr/bin/env bash
# Puts all files below a folder into a bucket: upload.sh FOLDER URL, as in upload.sh /data http://store:3900/bucket/prefix.
# AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION say who and where.
set -euo pipefail

folder=$1 url=${2%/}
cd "$folder"
count=0
while IFS= read -r file; do
    # curl signs the headers that it is given; S3 wants the body's hash among them.
    hash=$(sha256sum "$file" | cut -d' ' -f1)
    curl --silent --show-error --fail --retry 5 --retry-connrefused \
        --aws-sigv4 "aws:amz:$AWS_REGION:s3" --user "$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY" \
        --header "x-amz-content-sha256: $hash" --upload-file "$file" "$url/$file"
    count=$((count + 1))
done < <(find . -type f -printf '%P\n' | sort)
echo "uploaded $count files, $(du -sb . | cut -f1) bytes to $url"
